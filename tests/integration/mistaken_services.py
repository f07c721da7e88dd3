"""The service of `avow prove --pledges` with one mistake, `--mistake`, which the campaign must find.

branches without the barrier     a repeated delivery takes effect again
a checkback that presumes        it says that everything committed
work in another transaction      committed first, pledged afterwards: a crash between the two loses the pledge
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from avow.barrier.key import Question, Verdict
from avow.client.blocking_pledge import BlockingPledge
from avow.client.pledge_outcomes import Outcome
from avow_lab.campaigns.pledges.databases import Passing, SQLiteDatabase
from avow_lab.campaigns.pledges.service import flags, serve


class WithoutBarrier(SQLiteDatabase):
    def branch(self, query: Mapping[str, str], passing: Passing) -> None:
        with closing(self.connect()) as connection:
            connection.execute("insert into effects values (?, ?)", (query["gid"], query["branch_id"]))
            passing("in-branch")
            connection.commit()


class Presuming(SQLiteDatabase):
    def check_back(self, question: Question) -> Verdict:
        return Verdict.SUCCESS


class InTwoTransactions(SQLiteDatabase):
    def pledge(self, pledge: BlockingPledge, *, checkback: str, commit: bool, passing: Passing) -> Outcome:
        with closing(self.connect()) as connection:
            connection.execute("insert into works values (?)", (pledge.gid,))
            connection.commit()
            return pledge.do_and_submit_db(
                connection, lambda _: passing("in-work"), checkback=checkback, ask=self.check_back
            )


MISTAKES: dict[str, type[SQLiteDatabase]] = {
    "branches without the barrier": WithoutBarrier,
    "a checkback that presumes": Presuming,
    "work in another transaction": InTwoTransactions,
}


def main() -> None:
    parser = flags()
    parser.add_argument("--mistake", choices=MISTAKES, required=True)
    given = parser.parse_args()
    database = MISTAKES[given.mistake](given.database.removeprefix("sqlite:"))
    serve(database, peers=given.peers, port=given.port)


if __name__ == "__main__":
    main()
