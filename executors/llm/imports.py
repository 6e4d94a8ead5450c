"""What the fork server imports for executors of this room: what each of them needs, whatever its model and its device."""

import executors.llm.executor  # noqa: F401
