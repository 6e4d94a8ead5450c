"""Models by hub name: `cohort serve ORG/NAME` fetches a repository into the local cache and serves it from there.

    names.py     what names a repository
    client.py    the server's side: starts the child, hears its progress, answers with a directory or a sentence
    download_process.py  a process of its own: runs the download, ends with its parent
    download.py  what is fetched, in which order, and how a cut download goes on
    files.py     which files of a repository are needed
    explain.py   every fault as one sentence that says what to do

The library huggingface_hub is imported in the child only: a local directory is served without it, its threads cannot hold
up the end of the server, and a download can be killed at any moment.
"""

from server.hub.client import HubModel, fetch
from server.hub.files import HubError, HubNotYet
from server.hub.names import HubName, hub_name, without_host

__all__ = ["HubError", "HubModel", "HubName", "HubNotYet", "fetch", "hub_name", "without_host"]
