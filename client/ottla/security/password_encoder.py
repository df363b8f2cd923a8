"""Encodes passwords for ZooKeeper (KIP-226): encrypted with a secret of the brokers, in Kafka's format.

Called for dynamic settings that are secrets. The text `name:value,…` has the parameters of its encoding, so
that texts with other parameters can be decoded: a key by PBKDF2 from the secret, then AES in CBC or GCM.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final, NamedTuple

from ottla.environment import environment

CBC, GCM = "AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"
_DIGESTS: Final = {
    f"PBKDF2WithHmac{name.upper()}": name for name in ("sha1", "sha224", "sha256", "sha384", "sha512")
}
_KEY_BITS: Final = (128, 192, 256)
_SALT_BYTES: Final = 256
_GCM_TAG_BITS: Final = 128


class NotDecoded(ValueError):
    """The text was encoded with another secret, or has an unknown format."""


class PasswordEncoder(NamedTuple):
    """See the module. `key_factory`, `cipher`, `key_bits` and `iterations` are the parameters of `encode`."""

    secret: str
    key_factory: str = "PBKDF2WithHmacSHA512"
    cipher: str = CBC
    key_bits: int = 128
    iterations: int = 4096

    def problem(self) -> str | None:
        """Why these parameters cannot be used; None if they can."""
        if self.key_factory not in _DIGESTS:
            known = ", ".join(_DIGESTS)
            return f"password.encoder.keyfactory.algorithm={self.key_factory}: must be one of {known}"
        if self.cipher not in (CBC, GCM):
            return f"password.encoder.cipher.algorithm={self.cipher}: must be {CBC} or {GCM}"
        if self.key_bits not in _KEY_BITS:
            return f"password.encoder.key.length={self.key_bits}: must be 128, 192 or 256"
        return None

    def encode(self, password: str) -> str:
        assert self.problem() is None
        random_bytes = environment.get().random.randbytes
        salt = random_bytes(_SALT_BYTES)
        key = _key(self.secret, self.key_factory, salt, self.iterations, self.key_bits)
        iv = random_bytes(12 if self.cipher == GCM else 16)
        fields = {
            "keyFactoryAlgorithm": self.key_factory,
            "cipherAlgorithm": self.cipher,
            "keyLength": str(self.key_bits),
            "salt": _base64(salt),
            "iterations": str(self.iterations),
            "encryptedPassword": _base64(_encrypted(self.cipher, key, iv, password.encode())),
            "passwordLength": str(_java_length(password)),
            "initializationVector": _base64(iv),
        }
        if self.cipher == GCM:
            fields["authenticationTagLength"] = str(_GCM_TAG_BITS)
        return ",".join(f"{name}:{value}" for name, value in fields.items())

    def decode(self, text: str) -> str:
        """Raises NotDecoded."""
        from cryptography.exceptions import InvalidTag

        fields = {name: value for name, _, value in (field.partition(":") for field in text.split(","))}
        try:
            salt, iv, data = (
                base64.b64decode(fields[name], validate=True)
                for name in ("salt", "initializationVector", "encryptedPassword")
            )
            key = _key(
                self.secret,
                fields["keyFactoryAlgorithm"],
                salt,
                int(fields["iterations"]),
                int(fields["keyLength"]),
            )
            password = _decrypted(fields["cipherAlgorithm"], key, iv, data).decode()
            length = int(fields["passwordLength"])
        except (KeyError, ValueError, InvalidTag):
            raise NotDecoded("Password could not be decoded") from None
        if _java_length(password) != length:
            raise NotDecoded("Password could not be decoded, sanity check of length failed")
        return password


def _key(secret: str, factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
    return hashlib.pbkdf2_hmac(_DIGESTS[factory], secret.encode(), salt, iterations, bits // 8)


def _encrypted(cipher: str, key: bytes, iv: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.padding import PKCS7

    if cipher == GCM:
        return AESGCM(key).encrypt(iv, data, None)
    padder, encryptor = PKCS7(128).padder(), Cipher(algorithms.AES(key), modes.CBC(iv)).encryptor()
    return encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()


def _decrypted(cipher: str, key: bytes, iv: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.padding import PKCS7

    if cipher == GCM:
        return AESGCM(key).decrypt(iv, data, None)
    if cipher != CBC:
        raise NotDecoded(f"{cipher} is not supported")
    decryptor, unpadder = Cipher(algorithms.AES(key), modes.CBC(iv)).decryptor(), PKCS7(128).unpadder()
    return unpadder.update(decryptor.update(data) + decryptor.finalize()) + unpadder.finalize()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _java_length(text: str) -> int:
    """The length in UTF-16 code units, as in Java."""
    return len(text.encode("utf-16-le")) // 2
