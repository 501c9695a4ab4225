"""Write an environment once, then evaluate and train language models with it.

    import verifiers as vf

    def load_environment() -> vf.Environment:
        return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[correct]))

The public names are those of `__all__`. Each is loaded from its module when it is first asked for (PEP 562), so
that importing the package loads neither `datasets` nor `openai` nor `torch`. Inside the package nothing imports
from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from verifiers.errors import NEWER_API, UpstreamApiError

if TYPE_CHECKING:
    # `X as X` is how a type checker is told that a name is public (PEP 484).
    from verifiers.clients.anthropic import AnthropicMessagesClient as AnthropicMessagesClient
    from verifiers.clients.chat import OpenAIChatCompletionsClient as OpenAIChatCompletionsClient
    from verifiers.clients.client import Client as Client
    from verifiers.clients.completions import OpenAICompletionsClient as OpenAICompletionsClient
    from verifiers.clients.local import SamplerClient as SamplerClient, TokenizerRenderer as TokenizerRenderer
    from verifiers.decorators import (
        advantage as advantage,
        cleanup as cleanup,
        metric as metric,
        reward as reward,
        setup as setup,
        stop as stop,
        teardown as teardown,
        tool as tool,
        update as update,
    )
    from verifiers.envs.env_group import EnvGroup as EnvGroup
    from verifiers.envs.environment import Environment as Environment
    from verifiers.envs.example_datasets import load_example_dataset as load_example_dataset
    from verifiers.envs.load import load_environment as load_environment
    from verifiers.envs.mcp_env import MCPEnv as MCPEnv
    from verifiers.envs.multiturn_env import MultiTurnEnv as MultiTurnEnv
    from verifiers.envs.python_env import PythonEnv as PythonEnv
    from verifiers.envs.sandbox_env import SandboxEnv as SandboxEnv
    from verifiers.envs.singleturn_env import SingleTurnEnv as SingleTurnEnv
    from verifiers.envs.stateful_tool_env import StatefulToolEnv as StatefulToolEnv
    from verifiers.envs.tool_env import ToolEnv as ToolEnv
    from verifiers.error_text import ErrorChain as ErrorChain
    from verifiers.errors import (
        AuthenticationError as AuthenticationError,
        BrowserSandboxError as BrowserSandboxError,
        CommandTimeoutError as CommandTimeoutError,
        ConfigError as ConfigError,
        DatasetError as DatasetError,
        DataUnavailableError as DataUnavailableError,
        EmptyModelResponseError as EmptyModelResponseError,
        EndpointUnavailableError as EndpointUnavailableError,
        EnvironmentArgumentError as EnvironmentArgumentError,
        EnvironmentCodeError as EnvironmentCodeError,
        EnvironmentLoadError as EnvironmentLoadError,
        EnvironmentNotFoundError as EnvironmentNotFoundError,
        Error as Error,
        ExitCode as ExitCode,
        GraderError as GraderError,
        InfraError as InfraError,
        InvalidModelResponseError as InvalidModelResponseError,
        JudgeError as JudgeError,
        LimitError as LimitError,
        MissingExtraError as MissingExtraError,
        MissingKeyError as MissingKeyError,
        ModelError as ModelError,
        ModelNotFoundError as ModelNotFoundError,
        ModelTimeoutError as ModelTimeoutError,
        OverlongPromptError as OverlongPromptError,
        PythonWorkerDeadError as PythonWorkerDeadError,
        PythonWorkerNotReadyError as PythonWorkerNotReadyError,
        PythonWorkerRequestError as PythonWorkerRequestError,
        RateLimitError as RateLimitError,
        ResumeError as ResumeError,
        RewardError as RewardError,
        SandboxBusyError as SandboxBusyError,
        SandboxCreationError as SandboxCreationError,
        SandboxDiedError as SandboxDiedError,
        SandboxError as SandboxError,
        SandboxFileNotFoundError as SandboxFileNotFoundError,
        SandboxNotReadyError as SandboxNotReadyError,
        SandboxPathError as SandboxPathError,
        SandboxSettingsError as SandboxSettingsError,
        SandboxUnreachableError as SandboxUnreachableError,
        SandboxUnsupportedError as SandboxUnsupportedError,
        StoreError as StoreError,
        ToolCallError as ToolCallError,
        ToolError as ToolError,
        ToolParseError as ToolParseError,
        ToolServerError as ToolServerError,
        ToolServerStartError as ToolServerStartError,
        TunnelError as TunnelError,
        UpstreamApiError as UpstreamApiError,
        UserError as UserError,
    )
    from verifiers.evals.printing import print_prompt_completions_sample as print_prompt_completions_sample
    from verifiers.parsers.extract import (
        extract_boxed_answer as extract_boxed_answer,
        extract_code as extract_code,
        extract_hash_answer as extract_hash_answer,
    )
    from verifiers.parsers.maybe_think_parser import MaybeThinkParser as MaybeThinkParser
    from verifiers.parsers.parser import Parser as Parser
    from verifiers.parsers.think_parser import ThinkParser as ThinkParser
    from verifiers.parsers.xml_parser import XMLParser as XMLParser
    from verifiers.rollouts.engine import Engine as Engine, EngineOptions as EngineOptions
    from verifiers.rollouts.source import GroupSource as GroupSource, RolloutRequest as RolloutRequest
    from verifiers.rubrics.code_rubric import CodeRubric as CodeRubric
    from verifiers.rubrics.judge_rubric import JudgeRubric as JudgeRubric
    from verifiers.rubrics.math_rubric import MathRubric as MathRubric
    from verifiers.rubrics.rubric import Rubric as Rubric
    from verifiers.rubrics.rubric_group import RubricGroup as RubricGroup
    from verifiers.rubrics.tool_rubric import ToolRubric as ToolRubric
    from verifiers.sandboxes.default import default_provider as default_provider
    from verifiers.sandboxes.docker.provider import DockerProvider as DockerProvider
    from verifiers.sandboxes.local.provider import LocalProvider as LocalProvider
    from verifiers.sandboxes.pool import SandboxPool as SandboxPool
    from verifiers.sandboxes.prime.provider import PrimeProvider as PrimeProvider
    from verifiers.sandboxes.results import ExecResult as ExecResult
    from verifiers.sandboxes.sandbox import Sandbox as Sandbox
    from verifiers.sandboxes.spec import Mount as Mount, SandboxSpec as SandboxSpec, Secret as Secret
    from verifiers.scopes import Limit as Limit
    from verifiers.settings import (
        ensure_keys as ensure_keys,
        log_level as log_level,
        quiet_verifiers as quiet_verifiers,
        setup_logging as setup_logging,
    )
    from verifiers.train.advantages import make_algorithm as make_algorithm
    from verifiers.train.config import AdvantageConfig as AdvantageConfig
    from verifiers.train.groups import group_of as group_of
    from verifiers.train.merge import rows_of as rows_of
    from verifiers.train.rows import Row as Row
    from verifiers.train.storage import read_rows as read_rows, write_rows as write_rows
    from verifiers.types import (
        AssistantMessage as AssistantMessage,
        ChatMessage as ChatMessage,
        ChatMessages as ChatMessages,
        ClientConfig as ClientConfig,
        ContentPart as ContentPart,
        DatasetBuilder as DatasetBuilder,
        EndpointConfig as EndpointConfig,
        Endpoints as Endpoints,
        EvalConfig as EvalConfig,
        GenerateMetadata as GenerateMetadata,
        GenerateOutputs as GenerateOutputs,
        GroupRewardFunc as GroupRewardFunc,
        ImageUrlContentPart as ImageUrlContentPart,
        IndividualRewardFunc as IndividualRewardFunc,
        Info as Info,
        InputAudioContentPart as InputAudioContentPart,
        Message as Message,
        Messages as Messages,
        MessageType as MessageType,
        OnRewardError as OnRewardError,
        Outcome as Outcome,
        Record as Record,
        Response as Response,
        ResponseMessage as ResponseMessage,
        ResponseTokens as ResponseTokens,
        RewardFunc as RewardFunc,
        RolloutInput as RolloutInput,
        RolloutOutput as RolloutOutput,
        RolloutScore as RolloutScore,
        RolloutScores as RolloutScores,
        RolloutTiming as RolloutTiming,
        SamplingArgs as SamplingArgs,
        State as State,
        SystemMessage as SystemMessage,
        TaskSplit as TaskSplit,
        TextContentPart as TextContentPart,
        TextMessage as TextMessage,
        TimeSpan as TimeSpan,
        TimeSpans as TimeSpans,
        TokenUsage as TokenUsage,
        Tool as Tool,
        ToolCall as ToolCall,
        ToolMessage as ToolMessage,
        TrajectoryStep as TrajectoryStep,
        TrajectoryStepTokens as TrajectoryStepTokens,
        Usage as Usage,
        UserMessage as UserMessage,
        VersionInfo as VersionInfo,
    )

__version__ = "1.0.0"

_MODULES = {
    "verifiers.clients.anthropic": "AnthropicMessagesClient",
    "verifiers.clients.chat": "OpenAIChatCompletionsClient",
    "verifiers.clients.client": "Client",
    "verifiers.clients.completions": "OpenAICompletionsClient",
    "verifiers.clients.local": "SamplerClient TokenizerRenderer",
    "verifiers.decorators": "advantage cleanup metric reward setup stop teardown tool update",
    "verifiers.envs.env_group": "EnvGroup",
    "verifiers.envs.environment": "Environment",
    "verifiers.envs.example_datasets": "load_example_dataset",
    "verifiers.envs.load": "load_environment",
    "verifiers.envs.mcp_env": "MCPEnv",
    "verifiers.envs.multiturn_env": "MultiTurnEnv",
    "verifiers.envs.python_env": "PythonEnv",
    "verifiers.envs.sandbox_env": "SandboxEnv",
    "verifiers.envs.singleturn_env": "SingleTurnEnv",
    "verifiers.envs.stateful_tool_env": "StatefulToolEnv",
    "verifiers.envs.tool_env": "ToolEnv",
    "verifiers.error_text": "ErrorChain",
    "verifiers.errors": (
        "AuthenticationError BrowserSandboxError CommandTimeoutError ConfigError DataUnavailableError DatasetError "
        "EmptyModelResponseError EndpointUnavailableError EnvironmentArgumentError EnvironmentCodeError "
        "EnvironmentLoadError EnvironmentNotFoundError Error ExitCode GraderError InfraError "
        "InvalidModelResponseError JudgeError LimitError MissingExtraError MissingKeyError ModelError "
        "ModelNotFoundError ModelTimeoutError OverlongPromptError PythonWorkerDeadError PythonWorkerNotReadyError "
        "PythonWorkerRequestError RateLimitError ResumeError RewardError SandboxBusyError SandboxCreationError "
        "SandboxDiedError SandboxError SandboxFileNotFoundError SandboxNotReadyError SandboxPathError "
        "SandboxSettingsError SandboxUnreachableError SandboxUnsupportedError StoreError ToolCallError ToolError "
        "ToolParseError ToolServerError ToolServerStartError TunnelError UpstreamApiError UserError"
    ),
    "verifiers.evals.printing": "print_prompt_completions_sample",
    "verifiers.parsers.extract": "extract_boxed_answer extract_code extract_hash_answer",
    "verifiers.parsers.maybe_think_parser": "MaybeThinkParser",
    "verifiers.parsers.parser": "Parser",
    "verifiers.parsers.think_parser": "ThinkParser",
    "verifiers.parsers.xml_parser": "XMLParser",
    "verifiers.rollouts.engine": "Engine EngineOptions",
    "verifiers.rollouts.source": "GroupSource RolloutRequest",
    "verifiers.rubrics.code_rubric": "CodeRubric",
    "verifiers.rubrics.judge_rubric": "JudgeRubric",
    "verifiers.rubrics.math_rubric": "MathRubric",
    "verifiers.rubrics.rubric": "Rubric",
    "verifiers.rubrics.rubric_group": "RubricGroup",
    "verifiers.rubrics.tool_rubric": "ToolRubric",
    "verifiers.sandboxes.default": "default_provider",
    "verifiers.sandboxes.docker.provider": "DockerProvider",
    "verifiers.sandboxes.local.provider": "LocalProvider",
    "verifiers.sandboxes.prime.provider": "PrimeProvider",
    "verifiers.sandboxes.pool": "SandboxPool",
    "verifiers.sandboxes.results": "ExecResult",
    "verifiers.sandboxes.sandbox": "Sandbox",
    "verifiers.sandboxes.spec": "Mount SandboxSpec Secret",
    "verifiers.settings": "ensure_keys log_level quiet_verifiers setup_logging",
    "verifiers.scopes": "Limit",
    "verifiers.train.advantages": "make_algorithm",
    "verifiers.train.config": "AdvantageConfig",
    "verifiers.train.groups": "group_of",
    "verifiers.train.merge": "rows_of",
    "verifiers.train.rows": "Row",
    "verifiers.train.storage": "read_rows write_rows",
    "verifiers.types": (
        "AssistantMessage ChatMessage ChatMessages ClientConfig ContentPart DatasetBuilder EndpointConfig "
        "Endpoints EvalConfig GenerateMetadata GenerateOutputs GroupRewardFunc ImageUrlContentPart "
        "IndividualRewardFunc Info InputAudioContentPart Message MessageType Messages OnRewardError Outcome "
        "Record Response ResponseMessage ResponseTokens RewardFunc RolloutInput RolloutOutput RolloutScore "
        "RolloutScores RolloutTiming SamplingArgs State SystemMessage TaskSplit TextContentPart TextMessage "
        "TimeSpan TimeSpans TokenUsage Tool ToolCall ToolMessage TrajectoryStep TrajectoryStepTokens Usage "
        "UserMessage VersionInfo"
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

_MOVED = dict.fromkeys(
    ("GRPOTrainer", "GRPOConfig", "RLTrainer", "RLConfig", "grpo_defaults", "lora_defaults")
    + ("get_model", "get_model_and_tokenizer", "get_tokenizer"),
    "belongs to the trainer that left this package in 0.1.10; write a training script on generate(), "
    "whose results carry token ids and logprobs",
) | {
    "OpenAIResponsesClient": "is not offered; use OpenAIChatCompletionsClient",
    "RendererClient": "is not offered; token ids and logprobs are kept by every client whose endpoint has them",
    "TextArenaEnv": "is not offered; write a MultiTurnEnv around the game",
    "ReasoningGymEnv": "is not offered; write a SingleTurnEnv around the generator",
    "GymEnv": "is not offered; write a MultiTurnEnv around the gym environment",
    "CliAgentEnv": "is not offered; it belongs to the upstream vendor's services",
    "HarborEnv": "is not offered; it belongs to the upstream vendor's services",
    "BrowserEnv": "is not offered; it belongs to the upstream vendor's services",
    "OpenEnvEnv": "is not offered; it belongs to the upstream vendor's services",
    "RLMEnv": "is not offered; write a MultiTurnEnv",
}

__all__ = sorted(_HOME)  # noqa: PLE0605  # computed from the table that also resolves the names


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is not None:
        value = getattr(importlib.import_module(module), name)
        globals()[name] = value
        return value
    if name in _MOVED:
        raise AttributeError(f"verifiers.{name} {_MOVED[name]}")
    if name in NEWER_API:
        raise UpstreamApiError(
            f"verifiers.{name} belongs to the newer API of the upstream package (0.4 and later); "
            "this package provides load_environment + Rubric"
        )
    raise AttributeError(f"module 'verifiers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
