"""Secrets in command lines: what is hidden, what stays, and that no form of a value leaves."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.workloads import redaction
from kafka_probe.workloads.redaction import redacted

MARK = "ZJGV"
"""No part of a template: each of its letters in an output is a letter of the secret."""

VALUES = st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.text("/@:-= '\"")).map(
    lambda parts: f"{parts[1]}{MARK}{parts[0]}"
)
IN_URLS = st.text("abc019:/@?#=-%.", max_size=8).flatmap(lambda more: st.sampled_from([MARK + more, more + MARK]))

FORMS = (
    "--password\0{}",
    "--passwd\0{}",
    "--passwd={}",
    "--passwd=\0{}",
    "-password:{}",
    "/password:{}",
    "sasl.password={}",
    "sasl.password:{}",
    "sasl.password: {}",
    "sasl.password :{}",
    "-Dssl.keystore.pass={}",
    "dbPass={}",
    "userPwd={}",
    "MYSQL_PWD={}",
    "MYPASS={}",
    "--dbpass\0{}",
    "user[password]={}",
    "passwords[0]={}",
    "user%5Bpassword%5D%3D{}",
    "password%253D{}",
    "%7B%22password%22%3A%22{}%22%7D",
    "AccountName=a;AccountKey={};",
    "-H\0Authorization:Bearer {}",
    "-H\0Authorization: Basic {}",
    "-H\0X-API-Key:{}",
    '{{"password":{}}}',
    '{{"sasl.password" : "{}"}}',
    '{{\\"password\\":\\"{}\\"}}',
    "{{'password':'{}'}}",
    "-passin\0pass:{}",
    "-passout\0pass:{}",
    "-pass\0pass:{}",
    "sh\0-c\0app --password {} --topic t",
    "sh\0-c\0app '--password' {}",
    "sh\0-c\0login password {}",
    "sh\0-c\0put /app/password {}",
    "'password'\t{}",
    "<password>{}</password>",
    '<entry key="password">{}</entry>',
    '<property name="password" value="{}"/>',
    "<password>\0{}",
    "&lt;password&gt;{}",
    "%3Cpassword%3E{}",
    "password->{}",
    "password -> {}",
    "password->\0{}",
    "password=>{}",
    "password =>\0{}",
    "--token\0--token\0{}",
)


def shown(*arguments: str) -> str:
    return redacted(b"".join(argument.encode() + b"\0" for argument in arguments)).decode()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["kcat", "-X", "sasl.password=secret", "-L"], "kcat -X sasl.password=*** -L"),
        (["java", "-Djavax.net.ssl.keyStorePassword=a b", "Main"], "java -Djavax.net.ssl.keyStorePassword=*** Main"),
        (["app", "--sasl-password", "a b", "--topic", "t"], "app --sasl-password *** --topic t"),
        (["redis://cache?password=12345"], "redis://cache?password=***"),
        (["--url=redis://h:6379?password=12345&db=0"], "--url=redis://h:6379?password=***"),
        (["jdbc:sqlserver://h:1433;user=sa;password=12345"], "jdbc:sqlserver://h:1433;user=sa;password=***"),
        (['{"url":"x://h","password":12345}'], '{"url":"x://h","password":***'),
        (["app", "--conf", '{"sasl.jaas.config" : "x"}'], 'app --conf {"sasl.jaas.config" : ***'),
        (["app", "--conf", '{"password":1,"topic":"t"}'], 'app --conf {"password":***'),
        (["app", "--conf", r"{\"password\":\"x\"}"], r"app --conf {\"password\":***"),
        (["app", "https://user:a@registry/x?y=1"], "app https://user:***@registry/x?y=1"),
        (["app", "https://user:12345@registry"], "app https://user:***@registry"),
        (["app", "https://user:1/2@3@registry/x"], "app https://user:***@registry/x"),
        (["app", "ftp://me@mail:a@host", "redis://:1@host"], "app ftp://me@mail:***@host redis://:***@host"),
        (["app", "https://user:a@[::1]:8081"], "app https://user:***@[::1]:8081"),
        (["app", "https://a:1@x,https://b:2@y"], "app https://a:***@y"),
        (["sh", "-c", "API_KEY=a exec app"], "sh -c API_KEY=***"),
        (["app", "--pass", "a"], "app --pass ***"),
        (["app", "--pwd=a", "--passcode=a", "--auth=a"], "app --pwd=*** --passcode=*** --auth=***"),
        (["app", "--private-key", "a", "--access_key", "a"], "app --private-key *** --access_key ***"),
        (["curl", "-H", "Authorization: Bearer a"], "curl -H Authorization: ***"),
        (["curl", "-H", "Authorization:Bearer a"], "curl -H Authorization:***"),
        (["curl", "-H", "X-API-Key:a", "http://host:80/"], "curl -H X-API-Key:*** http://host:80/"),
        (["app", "sasl.password:1", "-password:2", "/password:3"], "app sasl.password:*** -password:*** /password:***"),
        (["openssl", "rsa", "-passin", "pass:a"], "openssl rsa -passin ***"),
        (["sh", "-c", "app --password a --topic t"], "sh -c app --password ***"),
        (["sh", "-c", "login password a"], "sh -c login password ***"),
        (["sh", "-c", "cat /run/token | app"], "sh -c cat /run/token ***"),
        (["app", "<user>u</user><password>a</password>"], "app <user>u</user><password>***"),
        (["app", "password->a", "password=>a"], "app password->*** password=>***"),
        (["app", "password=>", "a", "t"], "app password=*** *** t"),
        (["app", "--passwd", "--X", "--topic", "t"], "app --passwd *** --topic t"),
        (["app", "--password", "-a"], "app --password ***"),
        # An option that takes no value hides its neighbour: nobody can know.
        (["app", "--ask-password", "--topic", "t"], "app --ask-password *** t"),
    ],
)
def test_a_secret_is_hidden_to_the_end_of_its_argument(arguments: list[str], text: str) -> None:
    assert shown(*arguments) == text


@pytest.mark.parametrize(
    "arguments",
    [
        ["app", "/run/secrets/app.conf", "https://tokens:8080/x"],
        ["app", "/run/secrets/app", "--flag"],
        ["passwd", "operator"],
        ["vault", "token", "lookup"],
        ["java", "-Xmx1G", "-cp", "/opt/kafka/libs/*", "kafka.Kafka", "/etc/kafka/secrets/server.properties"],
        ["java", "-jar", "/opt/token-service.jar", "--topic", "t"],
        ["python", "-m", "token_service", "--topic", "t"],
        ["kafka-console-consumer.sh", "--topic", "password", "--bootstrap-server", "kafka:9092"],
        ["sh", "-c", "exec /opt/kafka/bin/kafka-server-start.sh /opt/kafka/config/server.properties > /var/log/x"],
        ["sh", "-c", ". /vault/secrets/config && exec python -m app"],
        ["sh", "-c", "exec bypass -> compass > x"],
        ["java", "-Dbypass=on", "-DbyPassage=on"],
        ["app", "http://registry:8081"],
        ["app", "http://registry:8081?x=y"],
        ["app", "http://[::1]:8081"],
        ["app", "PLAINTEXT://a:9092,b:9092"],
        ["sh", "-c", "curl 'http://registry:8081'"],
        ["app", "--author", "a", "--compass", "n", "compass=n", "BYPASS=1", "--passes=2", "lowpass=4"],
        ["app", "--bootstrap-servers", "kafka-1:9092,kafka-2:9092"],
        ["app", ""],
        ["caf\N{LATIN SMALL LETTER E WITH ACUTE}", "[x]"],
    ],
)
def test_what_is_no_secret_stays(arguments: list[str]) -> None:
    assert shown(*arguments) == " ".join(arguments).rstrip()


@given(st.sampled_from(FORMS), VALUES)
def test_no_value_after_a_name_gets_out(form: str, value: str) -> None:
    assert MARK not in shown("app", form.format(value))


@given(st.sampled_from(["https://user:{}@host/x", "-Durl=ftp://me@mail:{}@host", "x,redis://:{}@host:1"]), IN_URLS)
def test_no_password_of_a_url_gets_out(form: str, value: str) -> None:
    assert MARK not in shown("app", form.format(value))


@pytest.mark.parametrize("form", [*FORMS, "https://user:{}@host", "https://user:{}/{}@host"])
def test_wherever_the_kernel_cut_a_command_line_no_part_of_a_secret_gets_out(form: str) -> None:
    line = b"app\0" + form.format(MARK, MARK).encode() + b"\0"
    found = [redacted(line[:end]) for end in range(len(line) + 1)]
    assert [text for text in found if set(text) & set(MARK.encode())] == []


NAME = redaction._NAME + rb"[\w.\[\]\\\"'-]*(?![\w.\[\]\\\"'-])(?:%(?:25)?(?:2[27]|5[bcd]))*"
OPTION = rb"(?<![^\s\"'])--?[\w.-]*" + NAME
IS = redaction._IS


def hidden_plainly(line: bytes) -> bytes:
    """Apply the rules by patterns that may read a byte any number of times."""
    shown, hidden = [], False
    for argument in line.rstrip(b"\0").split(b"\0"):
        text = re.sub(rb"(://[^\s/:\[]*:)\S*(?=@)", rb"\1***", argument)
        for found in re.finditer(rb"(?i)%b(?:%b|\s)\s*(?=\S)" % (NAME, IS), text):
            in_host = re.search(rb"://[^\s/?#;&,=\"'\\]*\Z", text[: found.start()])
            if not (found[0].endswith(b":") and in_host and re.match(rb"\d{1,5}(?![\w@])", text[found.end() :])):
                text = text[: found.end()] + b"***"
                break
        shown.append(b"***" if hidden else text)
        hidden = re.search(rb"(?i)(?:%b%b|%b)\s*\Z" % (NAME, IS, OPTION), argument) is not None
    if not line.endswith(b"\0"):
        shown[-1] = re.sub(rb"(://[^\s/:\[]*:)\S+\Z", rb"\1***", shown[-1])
    return b" ".join(shown)


PIECES = (
    *("://", "://u:", ":", "@", "/", "?", ",", "x", "9092", "by", "token", "pass", "password", "auth", "api", "key"),
    *("=", ">", "&gt;", "%3d", "%253D", "%22", "%2522", "-", "--", '"', "'", "\\", "[", "]", ".", "_", " ", "\t", "\0"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_what_is_hidden_is_what_the_rules_in_plain_patterns_hide(line: str) -> None:
    assert redacted(line.encode()) == hidden_plainly(line.encode())


@pytest.mark.parametrize("end", [" x", "@\0"])
@pytest.mark.parametrize(
    "piece", ["://", "://:", "://auth:1.", "auth", "-token", '"-token', "token%22", "token ", "- "]
)
def test_a_long_command_line_is_looked_through_once(piece: str, end: str) -> None:
    """Patterns that start again at every piece would take minutes."""
    line = piece * (2**18 // len(piece)) + end
    began_s = time.process_time()
    assert redacted(line.encode()).startswith(piece[:3].encode())
    assert time.process_time() - began_s < 10
