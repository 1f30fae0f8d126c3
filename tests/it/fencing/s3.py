"""S3 compares entity tags, and the client compares tokens.

Called with the tokens of a holder that lost the lock and of the next holder, each from a lock. The server is moto's.
"""

import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

BUCKET = "bank"


def claim(s3, key, token):
    """Reads an object, and refuses all smaller tokens from then on. None: a later holder was here."""
    while True:
        try:
            found = s3.get_object(Bucket=BUCKET, Key=key)
            content, condition = json.load(found["Body"]), {"IfMatch": found["ETag"]}
        except s3.exceptions.NoSuchKey:
            content, condition = {"fence": 0, "value": None}, {"IfNoneMatch": "*"}
        if content["fence"] > token:
            return None
        tag = put(s3, key, token, content["value"], condition)
        if tag:
            return content["value"], tag


def write(s3, key, token, value, tag):
    """Writes an object that has this tag. None: somebody wrote in between, so claim it again."""
    return put(s3, key, token, value, {"IfMatch": tag})


def put(s3, key, token, value, condition):
    # The tag reflects the body alone, so the token is a part of it.
    body = json.dumps({"fence": token, "value": value})
    try:
        return s3.put_object(Bucket=BUCKET, Key=key, Body=body, **condition)["ETag"]
    except ClientError as error:
        # Another tag, a conflicting request under way, or no object any more.
        if error.response["ResponseMetadata"]["HTTPStatusCode"] in (412, 409, 404):
            return None
        raise


def main(stale, current):
    assert stale < current
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        late_writes_are_refused(client(f"http://{host}:{port}"), stale, current)
    finally:
        server.stop()


def client(endpoint):
    # A request that is sent again by itself would be refused after its own first attempt.
    config = Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=endpoint, config=config, **keys)


def late_writes_are_refused(s3, stale, current):
    s3.create_bucket(Bucket=BUCKET)
    # An object that does not exist yet.
    value, first = claim(s3, "account", stale)
    assert value is None
    assert put(s3, "account", stale, 1, {"IfNoneMatch": "*"}) is None, "it exists by now"
    first = write(s3, "account", stale, 100, first)
    assert first

    # The next holder claims and reads, then the holder before writes late.
    value, tag = claim(s3, "account", current)
    assert value == 100
    assert write(s3, "account", stale, 70, first) is None, "a late write was accepted"
    assert claim(s3, "account", stale) is None, "a smaller token was accepted"
    tag = write(s3, "account", current, 120, tag)
    assert tag
    # Its own second write, and the same one twice.
    again = write(s3, "account", current, 130, tag)
    assert again and write(s3, "account", current, 130, tag) is None
    assert claim(s3, "account", current)[0] == 130

    # Without the token in the body, the claim of the next holder changes no tag.
    s3.put_object(Bucket=BUCKET, Key="bare", Body=b"100", Metadata={"fence": str(stale)})
    old = s3.head_object(Bucket=BUCKET, Key="bare")["ETag"]
    s3.put_object(Bucket=BUCKET, Key="bare", Body=b"100", Metadata={"fence": str(current)}, IfMatch=old)
    s3.put_object(Bucket=BUCKET, Key="bare", Body=b"70", Metadata={"fence": str(stale)}, IfMatch=old)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
