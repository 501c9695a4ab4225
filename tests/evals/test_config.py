import math

import pytest
from hypothesis import given, strategies as st

from verifiers.errors import ConfigError, MissingKeyError
from verifiers.evals.config import resolve
from verifiers.evals.connection import check_keys
from verifiers.evals.store import config_file
from verifiers.evals.values import KINDS, parse_text, typed
from verifiers.types.config import ClientConfig, EvalConfig

pytestmark = pytest.mark.usefixtures("workspace")


def one(flags=None, target="toy-env"):
    [evaluation] = resolve([target], flags or {})
    return evaluation


def write(workspace, text, name="run.toml"):
    (workspace / name).write_text(text)
    return name


# --- precedence -----------------------------------------------------------------------------------------------


def test_each_source_yields_to_the_ones_above_it(workspace, make_environment, monkeypatch):
    """default < user's file < environment < project < globals < entry < variable < flag, each named."""
    folder = make_environment()
    seen = [one().config]
    (workspace / "user.toml").write_text("[eval]\nmax_retries = 11\n")
    seen.append(one().config)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "toy-env"\n[tool.verifiers.eval]\nmax_retries = 12\n'
    )
    seen.append(one().config)
    (workspace / "pyproject.toml").write_text("[tool.verifiers.eval]\nmax_retries = 13\n")
    seen.append(one().config)
    file = write(workspace, 'max_retries = 14\n[[eval]]\nid = "toy-env"\n')
    seen.append(one(target=file).config)
    file = write(workspace, 'max_retries = 14\n[[eval]]\nid = "toy-env"\nmax_retries = 15\n')
    seen.append(one(target=file).config)
    monkeypatch.setenv("VF_MAX_RETRIES", "16")
    seen.append(one(target=file).config)
    seen.append(one({"max_retries": 17}, file).config)
    assert [config.max_retries for config in seen] == [3, 11, 12, 13, 14, 15, 16, 17]
    origins = [config.origins.get("max_retries") for config in seen]
    assert origins == [
        None,
        str(workspace / "user.toml"),
        "toy-env's pyproject.toml",
        str(workspace / "pyproject.toml"),
        "run.toml (globals)",
        "run.toml [[eval]] 1",
        "VF_MAX_RETRIES",
        "flag",
    ]


def test_built_in_numbers_are_those_of_v0(make_environment):
    """Without any setting 5 tasks with 3 rollouts each are played and saved."""
    make_environment()
    config = one().config
    assert (config.num_examples, config.rollouts_per_example, config.max_concurrent) == (5, 3, 32)
    assert config.save_results
    assert config.seed == 0, "the embedded model gets a sampling seed"


def test_an_environment_can_not_redirect_keys_or_files(make_environment, caplog):
    """What an author proposes is how the environment is played, never where keys are sent."""
    make_environment(defaults='api_base_url = "http://evil/v1"\nnum_examples = 7\nodd = 1\n')
    config = one().config
    assert config.num_examples == 7
    assert "evil" not in config.client_config.api_base_url
    assert "api_base_url, odd" in caplog.text


# --- tables ---------------------------------------------------------------------------------------------------


def test_tables_are_merged_by_key_and_within_a_layer_the_table_wins(workspace, make_environment):
    """-S beats -t of the same command line; -t beats the table of a file; the rest of the file stays."""
    make_environment()
    file = write(
        workspace,
        '[sampling]\nmax_tokens = 1\ntop_p = 0.5\n[[eval]]\nid = "toy-env"\nargs = {a = 1, b = 1}\n',
    )
    flags = {"max_tokens": 2, "temperature": 0.1, "sampling_args": {"temperature": 0.9}, "env_args": {"b": 2}}
    config = one(flags, file).config
    assert config.sampling_args == {"max_tokens": 2, "top_p": 0.5, "temperature": 0.9}
    assert config.env_args == {"a": 1, "b": 2}
    assert config.origins["sampling_args"] == "flag, run.toml (globals)"


def test_the_time_out_wins_over_extra_keywords(make_environment):
    """--timeout is set_kwargs(timeout_seconds=…) and beats -x."""
    make_environment()
    config = one({"timeout": 3.5, "extra_env_kwargs": {"timeout_seconds": 9, "max_turns": 2}}).config
    assert config.extra_env_kwargs == {"timeout_seconds": 3.5, "max_turns": 2}


def test_reasoning_settings_of_a_file_reach_chat_templates(workspace, make_environment):
    """They are mirrored into extra_body.chat_template_kwargs, which keeps what the file says there."""
    make_environment()
    text = '[[eval]]\nid = "toy-env"\n[eval.sampling]\nenable_thinking = false\n[eval.sampling.extra_body]\nx = 1\n'
    sampling = one(target=write(workspace, text)).config.sampling_args
    assert sampling["enable_thinking"] is False
    assert sampling["extra_body"] == {"chat_template_kwargs": {"enable_thinking": False}, "x": 1}


def test_headers_are_merged_from_registry_table_and_list(workspace, make_environment):
    """Registry < headers table < header list; the session header stays unless replaced."""
    make_environment()
    (workspace / "configs").mkdir()
    row = '[[endpoint]]\nendpoint_id = "q"\nmodel = "m"\nurl = "http://a/v1"\nkey = "K"\n'
    row += 'headers = {A = "1", B = "1", C = "1"}\n'
    (workspace / "configs" / "endpoints.toml").write_text(row)
    text = '[[eval]]\nid = "toy-env"\nmodel = "q"\nheaders = {B = "2", C = "2"}\nheader_from_state = ["Y: key"]\n'
    client = one({"header": ["C: 3: x"]}, write(workspace, text)).config.client_config
    assert client.extra_headers == {"A": "1", "B": "2", "C": "3: x"}
    assert client.extra_headers_from_state == {"X-Session-ID": "trajectory_id", "Y": "key"}


# --- files ----------------------------------------------------------------------------------------------------


def test_ablations_are_crossed(workspace, make_environment):
    """Each combination of swept settings and arguments is one evaluation; fixed ones stay."""
    make_environment()
    text = (
        'num_examples = 2\n[[eval]]\nid = "toy-env"\nname = "first"\n[[ablation]]\nid = "toy-env"\nargs = {fixed = 1}\n'
        '[ablation.sweep]\ntemperature = [0.0, 0.5]\n[ablation.sweep.args]\nlevel = ["a", "b"]\n'
    )
    configs = [evaluation.config for evaluation in resolve([write(workspace, text)], {})]
    assert configs[0].label == "first"
    assert [(c.sampling_args["temperature"], c.env_args["level"]) for c in configs[1:]] == [
        (0.0, "a"),
        (0.0, "b"),
        (0.5, "a"),
        (0.5, "b"),
    ]
    assert all(c.env_args["fixed"] == 1 for c in configs[1:])
    assert all(c.num_examples == 2 for c in configs)


def test_a_model_above_replaces_an_endpoint_below(workspace, make_environment):
    """The highest source that names a model or an endpoint decides alone."""
    make_environment()
    text = (
        'endpoint_id = "q"\n[[eval]]\nid = "toy-env"\nmodel = "m"\napi_base_url = "http://localhost:1/v1"\n'
    )
    config = one(target=write(workspace, text)).config
    assert (config.model, config.endpoint_id) == ("m", None)
    assert config.origins["model"] == "run.toml [[eval]] 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[eval]]\nid = "toy-env"\nnum_example = 1\n',
            r"unknown setting 'num_example' in run.toml \[\[eval\]\] 1",
        ),
        ('num_exampels = 1\n[[eval]]\nid = "toy-env"\n', "unknown setting 'num_exampels' in the globals"),
        (
            '[[eval]]\nid = "toy-env"\nnum_examples = "a"\n',
            "num_examples in .* must be a whole number, not 'a'",
        ),
        ('[[eval]]\nid = "toy-env"\nnum_examples = true\n', "must be a whole number"),
        ('[[eval]]\nid = "toy-env"\nnum_examples = -2\n', "num_examples"),
        ('[[eval]]\nid = "toy-env"\non_reward_error = "zreo"\n', "on_reward_error"),
        ('[[eval]]\nid = "toy-env"\nenv_id = "b"\n', "sets env_id twice"),
        ('[[eval]]\nid = "toy-env"\nheader = ["x"]\n', "must be 'Name: Value'"),
        ("[eval]\nid = 1\n", "double brackets"),
        ("num_examples = 1\n", r"no \[\[eval\]\]"),
        ("[[eval]]\nnum_examples = 1\n", "names no environment"),
        ('name = "x"\n[[eval]]\nid = "toy-env"\n', "`name` belongs into"),
        ('[[ablation]]\nid = "toy-env"\n', "nothing to sweep"),
        ('[[ablation]]\nid = "toy-env"\n[ablation.sweep]\ntemperature = 1\n', "must be a list"),
        (
            '[[ablation]]\nid = "toy-env"\nargs = {a = 1}\n[ablation.sweep.args]\na = [1]\n',
            "both fixed and swept",
        ),
        ("x = \n", "no valid TOML"),
    ],
)
def test_mistakes_in_files_are_named(workspace, make_environment, text, message):
    """Each mistake is a ConfigError that names the place and the setting."""
    make_environment()
    with pytest.raises(ConfigError, match=message):
        resolve([write(workspace, text)], {})


def test_a_missing_file_is_named():
    """A target that ends in .toml is a file."""
    with pytest.raises(ConfigError, match=r"no file none\.toml"):
        resolve(["none.toml"], {})


def test_a_saved_configuration_plays_the_same_again(workspace, make_environment):
    """config.toml of a run resolves to the settings it was written from."""
    make_environment()
    flags = {
        "model": "m",
        "api_base_url": "http://localhost:9/v1",
        "num_examples": 2,
        "env_args": {"level": {"deep": [1, 2]}},
        "sampling_args": {"temperature": 0.5},
        "extra_env_kwargs": {"max_turns": 3},
        "state_columns": ["turn"],
        "shuffle": True,
        "seed": 4,
    }
    config = one(flags).config
    again = one(target=write(workspace, config_file(config), "config.toml")).config
    assert again.model_dump(exclude={"origins"}) == config.model_dump(exclude={"origins"})
    embedded = one().config
    again = one(target=write(workspace, config_file(embedded), "config.toml")).config
    assert again.model_dump(exclude={"origins"}) == embedded.model_dump(exclude={"origins"})


# --- which model ----------------------------------------------------------------------------------------------


def test_without_model_url_and_key_the_embedded_model_answers_with_a_notice(make_environment):
    """One notice says so; -m local says nothing."""
    make_environment()
    evaluation = one()
    assert evaluation.config.model_is_embedded
    assert "the embedded model answers" in evaluation.notices[0]
    named = one({"model": "local"})
    assert named.config.model_is_embedded
    assert named.notices == ()
    check_keys(named.config)


def test_without_model_a_key_that_is_set_chooses_the_provider(make_environment, monkeypatch):
    """The provider's default model is used, and a notice says why."""
    make_environment()
    monkeypatch.setenv("OPENROUTER_API_KEY", "x")
    evaluation = one()
    assert evaluation.config.model == "openai/gpt-4.1-mini"
    assert "openrouter.ai" in evaluation.config.client_config.api_base_url
    assert "OPENROUTER_API_KEY" in evaluation.notices[0]


def test_a_named_model_without_key_is_refused_with_the_embedded_model_as_hint(make_environment):
    """Exit code 3, the variable's name, and -m local."""
    make_environment()
    evaluation = one({"model": "gpt-4.1-mini"})
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY") as missing:
        check_keys(evaluation.config)
    assert missing.value.exit_code == 3
    assert "-m local" in missing.value.hint


@pytest.mark.parametrize("url", ["http://localhost:8000/v1", "http://127.0.0.1:1/v1", "http://[::1]:1/v1"])
def test_loopback_endpoints_need_no_key(make_environment, url):
    """A server on this machine asks for none."""
    make_environment()
    check_keys(one({"model": "m", "api_base_url": url}).config)


def test_a_base_url_without_model_asks_the_endpoint(make_environment):
    """The endpoint has to say what it serves; so does a provider without default model."""
    make_environment()
    assert one({"api_base_url": "http://localhost:1/v1"}).ask_model
    assert one({"provider": "vllm"}).ask_model
    assert not one({"provider": "openrouter"}).ask_model


def test_a_registered_model_brings_its_endpoint(workspace, make_environment):
    """The registry gives model, URL, key and replicas; flags replace parts; -b with -k skips it."""
    make_environment()
    row = '[[endpoint]]\nendpoint_id = "q"\nmodel = "org/q"\nurl = "http://{}/v1"\nkey = "K"\n'
    row += 'type = "openai_completions"\n'
    (workspace / "e.toml").write_text(row.format("a") + row.format("b"))
    flags = {"model": "q", "endpoints_path": "e.toml"}
    config = one(flags).config
    assert (config.model, config.endpoint_id) == ("org/q", "q")
    assert [replica.api_base_url for replica in config.client_config.expanded()] == [
        "http://a/v1",
        "http://b/v1",
    ]
    assert config.client_config.expanded()[1].client_type == "openai_completions"
    keyed = one({**flags, "api_key_var": "L"}).config.client_config
    assert [replica.api_key_var for replica in keyed.expanded()] == ["L", "L"]
    moved = one({**flags, "api_base_url": "http://localhost:1/v1"}).config
    assert (moved.model, moved.client_config.api_base_url) == ("org/q", "http://localhost:1/v1")
    assert moved.client_config.endpoint_configs == []
    provided = one({**flags, "provider": "deepseek"}).config.client_config
    assert provided.api_key_var == "DEEPSEEK_API_KEY"
    direct = one({**flags, "api_base_url": "http://localhost:1/v1", "api_key_var": "L"}).config
    assert (direct.model, direct.endpoint_id) == ("q", None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"provider": "opnai"}, "unknown provider 'opnai'"),
        ({"endpoint_id": "x"}, "no endpoint 'x' in the registry"),
        ({"model": "m", "api_base_url": "localhost:8000"}, "not an http"),
        (
            {"model": "local", "api_base_url": "http://localhost:1/v1"},
            "embedded model, which has no base URL",
        ),
        ({"model": "local:/none.gguf"}, "no model /none.gguf"),
        ({"model": "m", "api_base_url": "http://localhost:1/v1", "api_client_type": "odd"}, "client_type"),
    ],
)
def test_mistakes_about_the_model_are_named(make_environment, flags, message):
    """Each is a ConfigError, exit code 2."""
    make_environment()
    with pytest.raises(ConfigError, match=message) as refused:
        one(flags)
    assert refused.value.exit_code == 2


# --- values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"timeout": -1.0}, "a rollout that may take -1.0 seconds"),
        ({"timeout": 0}, "a rollout that may take 0 seconds"),
        ({"timeout": math.nan}, "a rollout that may take nan seconds"),
        ({"shuffle": True, "shuffle_seed": -3}, "shuffle_seed"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"sampling_args": {"top_p": math.inf}}, "top_p is inf"),
        ({"price": {"input": math.inf, "output": 1.0}}, "finite number"),
    ],
    ids=str,
)
def test_numbers_that_would_be_dropped_or_play_nothing_are_refused(make_environment, flags, message):
    """Before anything is played: NaN would be sent as null, and no rollout ends within no time."""
    make_environment()
    with pytest.raises(ConfigError, match=message):
        one({"model": "m", "api_base_url": "http://localhost:1/v1", **flags})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("model", "7", "7"),
        ("num_examples", "-1", -1),
        ("temperature", "0.5", 0.5),
        ("shuffle", "1", True),
        ("shuffle", "false", False),
        ("env_args", '{"a": 1}', {"a": 1}),
        ("state_columns", "a, b", ["a", "b"]),
        ("num_workers", "auto", "auto"),
        ("num_workers", "4", 4),
        ("resume", "runs/1", "runs/1"),
        ("resume", "true", True),
    ],
)
def test_variables_are_read_by_their_kind(name, text, value):
    """Text stays text, the rest is read as JSON, lists by commas."""
    assert parse_text(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"), [("num_examples", "many"), ("env_args", "{a: 1}"), ("env_args", "[1]")]
)
def test_unreadable_variables_are_named(name, text):
    """The message names the variable."""
    with pytest.raises(ConfigError, match=f"VF_{name.upper()}"):
        parse_text(name, text)


@given(
    st.sampled_from(sorted(KINDS)),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.none())),
)
def test_a_value_is_accepted_or_refused_by_name(name, value):
    """`typed` gives the value back or raises ConfigError with the setting's name."""
    refused = None
    try:
        back = typed(name, value, "here")
    except ConfigError as error:
        refused = str(error)
    assert name in refused if refused is not None else back is value


def test_no_retries_are_none_of_requests_either():
    """`max_retries` 0 goes down to the requests of every replica; any other number leaves them alone."""
    replicas = [ClientConfig(api_base_url="http://localhost:1"), ClientConfig(api_base_url="http://localhost:2")]
    client = ClientConfig(endpoint_configs=replicas)
    none = EvalConfig(env_id="toy", model="m", client_config=client, max_retries=0)
    assert [replica.max_retries for replica in none.client_config.expanded()] == [0, 0]
    one = EvalConfig(env_id="toy", model="m", client_config=client, max_retries=1)
    assert one.client_config.max_retries == client.max_retries == 10
