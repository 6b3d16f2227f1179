from advanced_alchemy.extensions.litestar import repository, service
from argon2 import PasswordHasher
from argon2.exceptions import VerificationError

from .errors import Refused
from .models import Book, User
from .settings import HASH_MEMORY

hasher = PasswordHasher(memory_cost=HASH_MEMORY)


class UserService(service.SQLAlchemyAsyncRepositoryService[User]):
    class Repository(repository.SQLAlchemyAsyncRepository[User]):
        model_type = User

    repository_type = Repository

    async def register(self, email: str, password: str) -> User:
        if await self.exists(email=email):
            raise Refused("This address is taken.", status_code=409)
        return await self.create({"email": email, "hashed_password": hasher.hash(password)})

    async def authenticate(self, email: str, password: str) -> User:
        user = await self.get_one_or_none(email=email)
        if user is None or not user.is_active or not verify(user, password):
            raise Refused("Wrong address or password.", status_code=401)
        return user


class BookService(service.SQLAlchemyAsyncRepositoryService[Book]):
    class Repository(repository.SQLAlchemyAsyncRepository[Book]):
        model_type = Book

    repository_type = Repository


def verify(user: User, password: str) -> bool:
    try:
        return hasher.verify(user.hashed_password, password)
    except VerificationError:
        return False
