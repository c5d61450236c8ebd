"""Patroni with three members of PostgreSQL, on three members of this server: leaders of both are killed while rows are written.

Arguments: the server's program, a folder for all files, the folder of PostgreSQL's programs, and the command that starts Patroni as
a user that PostgreSQL accepts. No acknowledged row may be lost, and each kill must be followed by writes.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import psycopg2

SERVER, FOLDER, POSTGRES = sys.argv[1:4]
AS_USER = sys.argv[4:]
MEMBERS = range(3)
# In a separate network namespace.
CLIENTS = [f"127.0.0.1:{23790 + at}" for at in MEMBERS]
PEERS = [f"http://127.0.0.1:{23800 + at}" for at in MEMBERS]
ROWS = 200
LONG = 180


def until(what, look):
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        try:
            found = look()
        except (OSError, psycopg2.Error, KeyError, ValueError):
            found = None
        if found:
            return found
        time.sleep(0.1)
    raise SystemExit(f"error: not within {LONG} s: {what}")


def ask(url, body=None):
    with urllib.request.urlopen(url, None if body is None else json.dumps(body).encode(), timeout=5) as reply:
        return json.loads(reply.read())


class Process:
    def __init__(self, name, command):
        self.name, self.command = name, command
        self.child = None

    def start(self):
        with open(f"{FOLDER}/{self.name}.log", "ab") as log:
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self, how=signal.SIGKILL):
        self.child.send_signal(how)
        self.child.wait()


def server(at):
    members = ",".join(f"e{other}={PEERS[other]}" for other in MEMBERS)
    flags = {
        "name": f"e{at}",
        "data-dir": f"{FOLDER}/e{at}",
        "listen-client-urls": f"http://{CLIENTS[at]}",
        "advertise-client-urls": f"http://{CLIENTS[at]}",
        "listen-peer-urls": PEERS[at],
        "initial-advertise-peer-urls": PEERS[at],
        "initial-cluster": members,
    }
    return Process(f"e{at}", [SERVER, *(f"--{name}={value}" for name, value in flags.items())])


def patroni(at):
    home = f"{FOLDER}/postgres/{at}"
    access = ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
    settings = {
        "scope": "rulers",
        "name": f"p{at}",
        "restapi": {"listen": f"127.0.0.1:{8008 + at}", "connect_address": f"127.0.0.1:{8008 + at}"},
        "etcd3": {"hosts": ",".join(CLIENTS)},
        "bootstrap": {
            "dcs": {
                "ttl": 20,
                "loop_wait": 2,
                "retry_timeout": 5,
                "synchronous_mode": True,
                "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on", "max_wal_senders": 8}},
            },
            "initdb": [{"encoding": "UTF8"}],
        },
        "postgresql": {
            "listen": f"127.0.0.1:{5500 + at}",
            "connect_address": f"127.0.0.1:{5500 + at}",
            "data_dir": f"{home}/data",
            "bin_dir": POSTGRES,
            "pgpass": f"{home}/pgpass",
            "pg_hba": access,
            "authentication": {
                "superuser": {"username": "postgres", "password": "p"},
                "replication": {"username": "replicator", "password": "p"},
            },
            "parameters": {"unix_socket_directories": home, "shared_buffers": "16MB"},
        },
    }
    # JSON is YAML.
    with open(f"{FOLDER}/p{at}.yml", "w", encoding="utf-8") as file:
        json.dump(settings, file)
    return Process(f"p{at}", [*AS_USER, "/usr/bin/python3", "-m", "patroni", f"{FOLDER}/p{at}.yml"])


def members():
    """Patroni's members by name, as any of them knows them."""
    for at in MEMBERS:
        try:
            return {member["name"]: member for member in ask(f"http://127.0.0.1:{8008 + at}/cluster")["members"]}
        except OSError:
            continue
    return {}


def leader():
    leaders = [name for name, member in members().items() if member["role"] == "leader" and member["state"] == "running"]
    return int(leaders[0][1:]) if len(leaders) == 1 else None


def complete():
    """The leader's place, plus one, once two others follow it, one of which has each row before it is acknowledged."""
    found = members()
    roles = [member["role"] for member in found.values()]
    states = [member["state"] for member in found.values()]
    is_complete = len(found) == 3 and "sync_standby" in roles and all(state in ("running", "streaming") for state in states)
    at = leader()
    return at + 1 if is_complete and at is not None else None


def connect(at):
    return psycopg2.connect(
        host="127.0.0.1", port=5500 + at, user="postgres", password="p", dbname="postgres", connect_timeout=5
    )


class Writer:
    """Writes rows at the leader. One whose outcome is not known is not written again."""

    def __init__(self):
        self.acknowledged, self.next, self.connection = [], 0, None

    def write_one(self):
        if self.connection is None:
            at = leader()
            if at is None:
                return False
            self.connection = connect(at)
            self.connection.autocommit = True
        self.next += 1
        try:
            with self.connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 5000")
                cursor.execute("INSERT INTO rows VALUES (%s)", (self.next,))
        except psycopg2.Error:
            self.connection.close()
            self.connection = None
            return False
        self.acknowledged.append(self.next)
        return True

    def write(self, count):
        end = len(self.acknowledged) + count

        def one():
            self.write_one()
            return len(self.acknowledged) >= end

        # Without a pause between rows while they succeed.
        def some():
            while self.connection is not None and len(self.acknowledged) < end:
                self.write_one()
            return one()

        until(f"{count} rows", some)


def kill_database(process, at):
    with open(f"{FOLDER}/postgres/{at}/data/postmaster.pid", encoding="utf-8") as file:
        postmaster = int(file.readline())
    process.kill()
    os.kill(postmaster, signal.SIGKILL)


def main():
    servers, databases = [server(at) for at in MEMBERS], [patroni(at) for at in MEMBERS]
    try:
        for process in servers:
            process.start()
        until("a leader of the servers", lambda: ask(f"http://{CLIENTS[0]}/health")["health"] == "true")
        for process in databases:
            process.start()
        at = until("three members of Patroni", complete) - 1
        with connect(at) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE rows (number int PRIMARY KEY)")
        writer = Writer()
        writer.write(ROWS)
        kills = 0
        for _ in MEMBERS:
            at = until("a complete cluster", complete) - 1
            kill_database(databases[at], at)
            begun = time.monotonic()
            until("another leader", lambda: leader() not in (None, at))
            writer.write(ROWS)
            print(f"patroni: the leader p{at} was killed, and rows went on after {time.monotonic() - begun:.1f} s")
            databases[at].start()
            until("a complete cluster", complete)

            status = ask(f"http://{CLIENTS[0]}/v3/maintenance/status", {})
            ids = [ask(f"http://{client}/v3/maintenance/status", {})["header"]["member_id"] for client in CLIENTS]
            led = ids.index(status["leader"])
            servers[led].kill()
            writer.write(ROWS)
            servers[led].start()
            until("the server again", lambda: ask(f"http://{CLIENTS[led]}/health")["health"] == "true")
            kills += 2
        at = until("a complete cluster", complete) - 1
        with connect(at) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT number FROM rows")
            found = {row[0] for row in cursor.fetchall()}
        lost = [row for row in writer.acknowledged if row not in found]
        if lost or not writer.acknowledged:
            raise SystemExit(f"error: {len(lost)} of {len(writer.acknowledged)} acknowledged rows are lost: {lost[:10]}")
        print(f"patroni: {len(writer.acknowledged)} rows acknowledged, none lost, after {kills} kills of leaders")
    finally:
        for process in databases:
            if process.child is not None:
                process.kill(signal.SIGTERM)
        for process in servers:
            if process.child is not None:
                process.kill()


main()
