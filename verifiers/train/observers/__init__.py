"""Where the reports of a training run go: a file, a metrics endpoint, other people's dashboards."""
