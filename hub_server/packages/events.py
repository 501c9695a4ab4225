"""What happens to releases, as the journal calls it. Resolution as of a serial reads these events.

All have `project_id` and, but for a project's own, `version` as it is shown.
"""

PUBLISH = "release.publish"
YANK = "release.yank"
"""Data: `reason`, `class`."""
UNYANK = "release.unyank"
DELETE = "release.delete"
VISIBILITY = "project.visibility"
"""Data: `visibility`."""
STATUS = "project.status"
"""Data: `status`, `reason`."""
TRANSFER = "project.transfer-name"
"""Data: `from`, `to`, both ids; one event for each of the two projects."""
