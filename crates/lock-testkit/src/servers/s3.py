"""A bucket of moto's. It serves one request at a time, as its comparison of tags and its write are two steps.

Called with a port. With a second argument, it writes whatever the condition is, as gateways do that ignore it.
"""

import sys
import threading

from moto.backends import get_backend
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

moto = DomainDispatcherApplication(create_backend_app)
turn = threading.Lock()


def serve(environ, start_response):
    if len(sys.argv) > 2:
        environ.pop("HTTP_IF_MATCH", None)
        environ.pop("HTTP_IF_NONE_MATCH", None)
    with turn:
        return list(moto(environ, start_response))


# Connections are kept.
WSGIRequestHandler.protocol_version = "HTTP/1.1"
get_backend("s3")["123456789012"]["aws"].create_bucket("locks", "us-east-1")
run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True)
