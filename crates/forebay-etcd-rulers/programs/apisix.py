"""Makes the calls of APISIX's client at the server of a port, as in lua-resty-etcd (lib/resty/etcd/v3.lua at 0041d2ed).

Its HTTP sends no content type, and it parses each chunk of a watch as one message.
"""

import base64
import http.client
import json
import socket
import sys

PORT = int(sys.argv[1])
DIR = "/apisix/routes/"
made = 0


def text64(text):
    return base64.b64encode(text.encode()).decode()


def value64(value):
    return text64(json.dumps(value))


def value_of(pair):
    return json.loads(base64.b64decode(pair["value"]))


def call(path, body=None, method="POST", status=200, token=None):
    global made
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    connection.request(method, path, json.dumps(body) if body else None, {"Authorization": token} if token else {})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    assert reply.status == status, (path, body, reply.status, content)
    made += 1
    return json.loads(content) if status == 200 else content


def read(key, **more):
    return call("/v3/kv/range", {"key": text64(key), **more})


class Watch:
    """A watch of the folder, message by message."""

    def __init__(self, revision):
        global made
        body = json.dumps(
            {"create_request": {"key": text64(DIR), "range_end": text64(DIR[:-1] + "0"), "start_revision": revision}}
        )
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=60)
        self.socket.sendall(
            f"POST /v3/watch HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        self.file = self.socket.makefile("rb")
        status = self.file.readline()
        assert b" 200 " in status, status
        headers = iter(self.file.readline, b"\r\n")
        assert any(header.lower().startswith(b"transfer-encoding: chunked") for header in list(headers))
        made += 1

    def message(self):
        length = int(self.file.readline(), 16)
        chunk = self.file.read(length + 2)
        return json.loads(chunk)["result"]


def main():
    assert call("/version", method="GET")["etcdserver"]
    call("/v2/stats/leader", method="GET", status=404)
    route = {"uri": "/*", "upstream": {"nodes": {"127.0.0.1:1980": 1}, "type": "roundrobin"}}
    put = call("/v3/kv/put", {"key": text64(DIR + "1"), "value": value64(route)})
    revision = int(put["header"]["revision"])
    found = read(DIR + "1")
    assert (found["count"], value_of(found["kvs"][0])) == ("1", route), found
    assert "kvs" not in read(DIR + "none")
    before = call("/v3/kv/put", {"key": text64(DIR + "1"), "value": value64(1), "prev_kv": True})
    assert value_of(before["prev_kv"]) == route, before

    absent = {"target": "CREATE", "key": text64(DIR + "2"), "createRevision": 0}
    new = {"requestPut": {"key": text64(DIR + "2"), "value": value64("new")}}
    for is_made in (True, False):
        assert call("/v3/kv/txn", {"compare": [absent], "success": [new]}).get("succeeded", False) == is_made
    changed = call("/v3/kv/txn", {"compare": [absent], "failure": [new]})
    assert "response_put" in changed["responses"][0], changed
    same = {"target": "VALUE", "key": text64(DIR + "2"), "value": value64("new"), "result": "EQUAL"}
    assert call("/v3/kv/txn", {"compare": [same], "success": [new]})["succeeded"]

    folder = {"range_end": text64(DIR[:-1] + "0")}
    assert [value_of(pair) for pair in read(DIR, **folder)["kvs"]] == [1, "new"]
    assert read(DIR, **folder, count_only=True)["count"] == "2"
    last = read(DIR, **folder, limit=1, sort_order="DESCEND", sort_target="KEY", keys_only=True)
    assert last["more"] and last["kvs"][0]["key"] == text64(DIR + "2") and "value" not in last["kvs"][0], last
    assert value_of(read(DIR + "1", revision=revision)["kvs"][0]) == route

    lease = call("/v3/lease/grant", {"TTL": 600, "ID": 0})["ID"]
    call("/v3/kv/put", {"key": text64("/apisix/data_plane/1"), "value": value64({}), "lease": lease})
    left = call("/v3/kv/lease/timetolive", {"ID": lease, "keys": True})
    assert left["keys"] == [text64("/apisix/data_plane/1")] and left["grantedTTL"] == "600", left
    assert call("/v3/lease/keepalive", {"ID": lease})["result"]["TTL"] == "600"
    assert {"ID": lease} in call("/v3/lease/leases")["leases"]
    call("/v3/kv/lease/revoke", {"ID": lease})
    assert "kvs" not in read("/apisix/data_plane/1")

    watch = Watch(revision)
    assert watch.message()["created"]
    events = []
    while len(events) < 5:
        events += watch.message()["events"]
    assert value_of(events[0]["kv"]) == route and len(events) == 5, events
    deleted = call("/v3/kv/deleterange", {"key": text64(DIR), **folder, "prev_kv": True})
    assert (deleted["deleted"], len(deleted["prev_kvs"])) == ("2", 2), deleted
    gone = watch.message()["events"]
    assert [event["type"] for event in gone] == ["DELETE", "DELETE"], gone
    watch.socket.close()

    call("/v3/auth/user/add", {"name": "root", "password": "secret"})
    call("/v3/auth/role/add", {"name": "root"})
    call("/v3/auth/user/grant", {"user": "root", "role": "root"})
    call("/v3/auth/enable")
    refused = call("/v3/kv/range", {"key": text64(DIR)}, status=400)
    assert b"user name is empty" in refused, refused
    token = call("/v3/auth/authenticate", {"name": "root", "password": "secret"})["token"]
    call("/v3/kv/put", {"key": text64(DIR + "3"), "value": value64(3)}, token=token)
    call("/v3/kv/range", {"key": text64(DIR)}, status=401, token="wrong")
    call("/v3/auth/disable", token=token)
    print(f"apisix: {made} calls of lua-resty-etcd, as it takes them")


main()
