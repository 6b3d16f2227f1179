"""Secrets that are public: in standards, tutorials, and default configurations.

They stand here as they are printed; an application that decodes one first is refused too. Those of fewer than 32 bytes
are too short anyway.
"""

from __future__ import annotations

from typing import Final

PUBLISHED: Final = (
    # RFC 7515, appendix A.1, and RFC 7517, appendix A.3.
    b"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
    # RFC 7520, sections 3.5 and 3.6.
    b"hJtXIZ2uSN5kbQfbtTNWbpdmhkV8FJG-Onbc6mxCcYg",
    b"AAPapAv4LbFbiVawEjagUBluYqN5rhna-8nuldDvOx8",
    # jwt.io, for HS256, HS384 and HS512.
    b"a-string-secret-at-least-256-bits-long",
    b"a-valid-string-secret-that-is-at-least-384-bits-long",
    b"a-valid-string-secret-that-is-at-least-512-bits-long-which-is-very-long",
    # FastAPI, tutorial "OAuth2 with Password (and hashing), Bearer with JWT tokens".
    b"09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",
    # Flask, "Configuration Handling", SECRET_KEY.
    b"192b9bdd22ab9ed4d12e236c78afcb9a393ec15f71bbf5dc987d54727823bcbf",
    # Flask-Security, "Quick Start", SECRET_KEY and SECURITY_PASSWORD_SALT.
    b"pf9Wkove4IKEAXvy-cQkeDPhv9Cb3Ag-wyJILbq_dFw",
    b"146585145368132386173505678016728509634",
    # aiohttp-session, README.
    b"Thirty  two  length  bytes  key.",
    # NestJS, "Authentication".
    b"DO NOT USE THIS VALUE. INSTEAD, CREATE A COMPLEX SECRET AND KEEP IT SAFE OUTSIDE OF THE SOURCE CODE.",
    # Supabase, command line and self-hosting.
    b"super-secret-jwt-token-with-at-least-32-characters-long",
    b"your-super-secret-jwt-token-with-at-least-32-characters-long",
    # PostgREST, tutorial and tests.
    b"reallyreallyreallyreallyverysafe",
    # Hasura, "Authentication using JWT".
    b"3EK6FD+o0+c7tzBNVfjpMkNDi2yARAAKzQlk8O2IKoxQu4nF7EdAh8s3TwpHwrdWT6R",
    # Nacos, default configuration and documentation.
    b"SecretKey012345678901234567890123456789012345678901234567890123456789",
    b"VGhpc0lzTXlDdXN0b21TZWNyZXRLZXkwMTIzNDU2Nzg=",
    # Dify, default configuration.
    b"sk-9f73s3ljTXVcMT3Blb3ljTqtsKiGHXVcMT3BlbkFJLK7U",
    # Tutorials of JWTs with Spring Boot, copied into thousands of repositories.
    b"404E635266556A586E3272357538782F413F4428472B4B6250645367566B5970",
    b"5367566B59703373367639792F423F4528482B4D6251655468576D5A71347437",
    b"3cfa76ef14937c1c0ea519f8fc057a80fcd04a7420f8e8bcd0a7567c272e007b",
    b"9a4f2c8d3b7a1e6f45c8a0b3f267d8b1d4e6f3c8a9d2b5f8e3a9c8b5f6v8a3d9",
    # Tutorials of JWTs with ASP.NET, likewise.
    b"db3OIsj+BXE9NZDy0t8W3TcNekrF+2d/1sFnWG4HnV8TZY30iTOdtVWJG8abWvB1GlOgJuQZdcF2Luqm/hccMw==",
    (
        b"401b09eab3c013d4ca54922bb802bec8fd5318192b0a75f201d8b3727429090f"
        b"b337591abd3e44453b954555b7a0812e1081c39b740293f765eae731f5a65ed1"
    ),
    b"856FECBA3B06519C8DDDBC80BB080553",
)
