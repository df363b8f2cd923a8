"""Round trips of encoded passwords; tests/interop has Apache Kafka decode ours, and Ottla decode Kafka's."""

from __future__ import annotations

import pytest

from ottla.security.password_encoder import CBC, GCM, NotDecoded, PasswordEncoder


@pytest.mark.parametrize("cipher", [CBC, GCM])
@pytest.mark.parametrize("password", ["", "geheim", "naïve 𝄞 :,="])
def test_decoding_does_not_depend_on_the_present_parameters(cipher: str, password: str) -> None:
    text = PasswordEncoder("the secret", "PBKDF2WithHmacSHA256", cipher, 256, 2000).encode(password)
    assert password == "" or password not in text
    assert PasswordEncoder("the secret").decode(text) == password


def test_every_encoding_is_different() -> None:
    encoder = PasswordEncoder("the secret")
    assert encoder.encode("x") != encoder.encode("x")


def test_the_fields_are_kafkas() -> None:
    fields = dict(field.split(":") for field in PasswordEncoder("the secret").encode("geheim").split(","))
    assert fields.keys() == {
        "keyFactoryAlgorithm",
        "cipherAlgorithm",
        "keyLength",
        "salt",
        "iterations",
        "encryptedPassword",
        "passwordLength",
        "initializationVector",
    }
    assert fields["passwordLength"] == "6"


@pytest.mark.parametrize("cipher", [CBC, GCM])
def test_a_wrong_secret_or_a_changed_text_is_detected(cipher: str) -> None:
    text = PasswordEncoder("the secret", cipher=cipher).encode("geheim")
    for secret, wrong in (
        ("another", text),
        ("the secret", "geheim"),
        ("the secret", ""),
        ("the secret", text.replace("passwordLength:6", "passwordLength:7")),
        ("the secret", text.replace("AES/", "DES/")),
    ):
        with pytest.raises(NotDecoded, match="Password could not be decoded"):
            PasswordEncoder(secret).decode(wrong)


@pytest.mark.parametrize(
    ("encoder", "says"),
    [
        (PasswordEncoder("s", key_factory="MD5"), "keyfactory.algorithm=MD5: must be one of PBKDF2"),
        (PasswordEncoder("s", cipher="DES"), "cipher.algorithm=DES: must be AES/CBC"),
        (PasswordEncoder("s", key_bits=64), "key.length=64: must be 128"),
    ],
)
def test_invalid_parameters_are_refused(encoder: PasswordEncoder, says: str) -> None:
    assert says in (encoder.problem() or "")
