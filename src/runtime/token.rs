//! The progress token: what of a mapping is in its sink, kept by the sink in the transaction of the documents.
//!
//! Pure: what a token says, how it is written, and what a term may conclude from it. A token must never claim
//! more than what is in the sink. It may claim less, and does where documents are few: what the state schema
//! says counts as well, and the later of both is where a term goes on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    backfill::{Attempt, Cursor, Emission},
    model::{ChangeBatch, Failure, FailureClass, Lsn},
    pipeline::{LaneId, Ledger},
    sink::{Fence, Progress},
};

/// Which history of which database positions belong to: the same number in another one is another place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct History {
    pub(super) system: String,
    pub(super) timeline: i32,
}

/// How far a mapping's documents in its sink are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    pub(super) installation: String,
    pub(super) mapping: String,
    pub(super) history: History,
    /// The leadership that wrote it.
    #[serde(default)]
    pub(super) leadership: i64,
    /// The generation that made the documents.
    pub(super) generation: i64,
    /// Every transaction that was committed before is in the sink.
    #[serde(with = "lsn_text")]
    pub(super) position: Lsn,
    /// The last backfill of which a chunk is in the sink.
    pub(super) run: Option<RunToken>,
}

/// How much of a backfill is in the sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunToken {
    pub(super) run: String,
    /// Every row up to this key is in the sink, or was overtaken.
    pub(super) cursor: Option<Cursor>,
    /// Rows that were read up to here.
    pub(super) rows: u64,
    /// Chunks up to here.
    pub(super) chunks: u64,
    /// The term that read the last one, and its place among the readings of that term. All targets of a run are
    /// handed the same chunks in this order.
    pub(super) term: u64,
    pub(super) serial: u64,
}

impl RunToken {
    /// The reading of the last chunk.
    pub(super) fn attempt(&self) -> Attempt {
        Attempt { incarnation: self.term, serial: self.serial }
    }

    /// What a target has once it has this chunk and all before it.
    pub(super) fn after<P>(emission: &Emission<P>) -> Self {
        Self {
            run: emission.run.to_string(),
            cursor: emission.cursor.clone(),
            rows: emission.read,
            chunks: emission.chunk + 1,
            term: emission.attempt.incarnation,
            serial: emission.attempt.serial,
        }
    }
}

impl Token {
    /// Under what a sink keeps it. A slot's name has no `/`.
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.installation, self.mapping)
    }

    /// As a sink keeps it.
    pub(super) fn progress(&self) -> Result<Progress, Failure> {
        let token = serde_json::to_string(self).map_err(|error| {
            let message = format!("the progress of {} cannot be written: {error}", self.mapping);
            Failure::new(FailureClass::Fatal, "token", message)
        })?;
        let fence = Fence { owner: self.history.system.clone(), term: self.leadership };
        Ok(Progress { key: self.key(), token, fence })
    }

    /// Reads what a sink has kept.
    pub(super) fn decode(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// A piece of work is about to be delivered. What is handed out again after a lane was let go brings older
    /// versions back for a while, so the token goes back with them.
    pub(super) fn go_back(&mut self, step: &Advance) {
        self.position = self.position.min(step.from);
    }

    /// Takes up what a piece of work adds, once all of it is in the sink.
    pub(super) fn add(&mut self, step: &Advance, generation: i64) {
        self.position = step.position;
        self.generation = generation;
        match &step.run {
            RunAdvance::Same => {}
            RunAdvance::None => self.run = None,
            RunAdvance::At(run) => self.run = Some(run.clone()),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {}, generation {}", self.position, self.generation)?;
        match &self.run {
            Some(run) => write!(f, ", {} rows of the backfill {}", run.rows, run.run),
            None => Ok(()),
        }
    }
}

/// What a piece of work adds to a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advance {
    /// Everything before this was handed out before it.
    pub(super) from: Lsn,
    /// Everything before this is in the sink with it.
    pub(super) position: Lsn,
    pub(super) run: RunAdvance,
}

/// What a piece of work says of the backfill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunAdvance {
    /// Nothing.
    Same,
    /// What was in the sink of it is to be delivered again.
    None,
    /// This chunk of it.
    At(RunToken),
}

/// Up to where `lane` has been handed everything, before the next piece of work.
pub(super) fn handed(ledger: &Ledger, lane: LaneId) -> Lsn {
    ledger.processed().max(ledger.skipped_until(lane))
}

/// The same with this batch of the stream: up to its last whole transaction. Of a transaction that comes in
/// pages, the last page counts for all.
pub(super) fn handed_with(ledger: &Ledger, lane: LaneId, batch: &ChangeBatch) -> Lsn {
    let ends = batch.transactions.iter().map(|transaction| transaction.end_lsn);
    ends.fold(handed(ledger, lane), Lsn::max)
}

/// Where a mapping goes on: the later of what the state schema and the sink say. A token of another generation
/// or another history says nothing.
pub(super) fn position_with(stored: Lsn, token: Option<&Token>, generation: i64, history: &History) -> Lsn {
    usable(token, generation, history).map_or(stored, |token| stored.max(token.position))
}

/// The token, where it is of this generation and history.
pub(super) fn usable<'a>(token: Option<&'a Token>, generation: i64, history: &History) -> Option<&'a Token> {
    token.filter(|token| token.generation == generation && token.history == *history)
}

/// Where a run, stored with so many chunks, goes on if its targets have more of it: at the least advanced of them. All must
/// tell, of this very run, and in the order of one term: chunks that two terms have read end at different rows.
pub(super) fn cursor_with<'a>(
    run: &str,
    chunks: i64,
    targets: impl IntoIterator<Item = Option<&'a RunToken>>,
) -> Option<RunToken> {
    let targets: Vec<&RunToken> = targets.into_iter().collect::<Option<_>>()?;
    let least = *targets.iter().min_by_key(|token| token.serial)?;
    let comparable = |token: &&RunToken| token.run == run && token.term == least.term;
    let ahead = i64::try_from(least.chunks).is_ok_and(|least| least > chunks);
    (ahead && targets.iter().all(comparable)).then(|| least.clone())
}

mod lsn_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use crate::model::Lsn;

    pub(super) fn serialize<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(lsn)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backfill::KeyColumn,
        model::{Origin, TransactionInfo},
    };

    fn history() -> History {
        History { system: "7300000000000000001".to_owned(), timeline: 1 }
    }

    fn token(generation: i64, position: u64, run: Option<RunToken>) -> Token {
        Token {
            installation: "shop".to_owned(),
            mapping: "products".to_owned(),
            history: history(),
            leadership: 1,
            generation,
            position: Lsn(position),
            run,
        }
    }

    fn cursor(value: &str) -> Cursor {
        let column = KeyColumn { name: "id".to_owned(), attribute: 1, type_oid: 20, collation: 0 };
        Cursor { key: vec![column], values: vec![value.to_owned()] }
    }

    fn at(run: &str, chunks: u64, (term, serial): (u64, u64)) -> RunToken {
        let key = (chunks * 100).to_string();
        RunToken { run: run.to_owned(), cursor: Some(cursor(&key)), rows: chunks * 100, chunks, term, serial }
    }

    #[test]
    fn a_token_survives_its_text() {
        for run in [None, Some(at("r", 3, (7, 12)))] {
            let token = token(2, 0x16_B374_D848, run);
            let text = token.progress().unwrap().token;
            assert!(text.contains("\"16/B374D848\""), "{text}");
            assert_eq!(Token::decode(&text).unwrap(), token);
        }
        assert!(Token::decode("{}").is_err());
        assert!(Token::decode(r#"{"position":"no"}"#).is_err());
        assert_eq!(token(1, 1, None).key(), "shop/products");
    }

    #[test]
    fn the_later_of_state_and_sink_is_where_a_mapping_goes_on() {
        let position = |stored, token: Option<&Token>| position_with(Lsn(stored), token, 2, &history());
        assert_eq!(position(10, None), Lsn(10));
        assert_eq!(position(10, Some(&token(2, 20, None))), Lsn(20));
        assert_eq!(position(30, Some(&token(2, 20, None))), Lsn(30));
    }

    #[test]
    fn a_token_of_another_generation_or_history_says_nothing() {
        let position = |token: &Token| position_with(Lsn(10), Some(token), 2, &history());
        assert_eq!(position(&token(1, 20, None)), Lsn(10));
        assert_eq!(position(&token(3, 20, None)), Lsn(10));
        let promoted = History { timeline: 2, ..history() };
        assert_eq!(position(&Token { history: promoted, ..token(2, 20, None) }), Lsn(10));
        let other = History { system: "8".to_owned(), ..history() };
        assert_eq!(position(&Token { history: other, ..token(2, 20, None) }), Lsn(10));
    }

    #[test]
    fn a_run_goes_on_at_its_least_advanced_target() {
        let (near, far) = (at("r", 5, (3, 9)), at("r", 8, (3, 14)));
        assert_eq!(cursor_with("r", 2, [Some(&far), Some(&near)]), Some(near.clone()));
        assert_eq!(cursor_with("r", 2, [Some(&far)]), Some(far.clone()));
        assert_eq!(cursor_with("r", 0, [Some(&near)]), Some(near.clone()), "nothing was saved yet");
    }

    #[test]
    fn a_run_goes_on_as_stored_where_a_target_cannot_tell() {
        let (near, far) = (at("r", 5, (3, 9)), at("r", 8, (3, 14)));
        assert_eq!(cursor_with("r", 5, [Some(&near), Some(&far)]), None, "not ahead");
        assert_eq!(cursor_with("r", 2, [Some(&near), None]), None, "one has no token");
        assert_eq!(cursor_with("r", 2, [Some(&near), Some(&at("q", 8, (3, 14)))]), None);
        assert_eq!(cursor_with("q", 2, [Some(&near)]), None, "of a run before");
        assert_eq!(cursor_with("r", 2, []), None);
    }

    /// After a restart pages have other sizes: the numbers of chunks and rows do not tell which cursor is less.
    #[test]
    fn targets_of_two_terms_are_not_compared() {
        let before = at("r", 5, (3, 9));
        let behind = RunToken { cursor: Some(cursor("340")), ..at("r", 6, (4, 2)) };
        assert_eq!(cursor_with("r", 2, [Some(&before), Some(&behind)]), None);
    }

    /// After a rewind chunk numbers are used again; the order of the readings is what all targets share.
    #[test]
    fn the_order_of_readings_counts_and_not_the_number_of_chunks() {
        let before = at("r", 6, (3, 12));
        let after = RunToken { cursor: Some(cursor("350")), ..at("r", 5, (3, 13)) };
        assert_eq!(cursor_with("r", 2, [Some(&before), Some(&after)]), Some(before));
    }

    #[test]
    fn a_batch_counts_up_to_its_last_whole_transaction() {
        let lane = LaneId(1);
        let mut ledger = Ledger::new(Lsn(100));
        ledger.attach(lane, Lsn(150));
        assert_eq!(handed(&ledger, lane), Lsn(150), "what it skips it has");
        let mut batch = ChangeBatch::new(Origin::Stream);
        let commit =
            |at, end| TransactionInfo { xid: 1, commit_lsn: Lsn(at), end_lsn: Lsn(end), commit_time: 0 };
        batch.transactions = vec![commit(200, 210), commit(220, 0)];
        batch.ends_at_commit = false;
        assert_eq!(
            handed_with(&ledger, lane, &batch),
            Lsn(210),
            "the page of the second one counts for nothing"
        );
        batch.transactions = vec![commit(220, 0)];
        ledger.advance(Lsn(210));
        assert_eq!(handed_with(&ledger, lane, &batch), Lsn(210));
        batch.transactions = vec![commit(220, 230)];
        assert_eq!(handed_with(&ledger, lane, &batch), Lsn(230));
    }

    #[test]
    fn work_moves_a_token_and_may_take_it_back() {
        let advance = |from, position, run| Advance { from: Lsn(from), position: Lsn(position), run };
        let mut token = token(1, 50, None);
        let chunk = at("r", 1, (3, 2));
        token.add(&advance(50, 60, RunAdvance::At(chunk.clone())), 1);
        assert_eq!((token.position, token.run.clone()), (Lsn(60), Some(chunk.clone())));
        let again = advance(30, 40, RunAdvance::Same);
        token.go_back(&again);
        assert_eq!(token.position, Lsn(30));
        token.add(&again, 2);
        assert_eq!((token.position, token.generation, token.run.clone()), (Lsn(40), 2, Some(chunk)));
        token.add(&advance(40, 70, RunAdvance::None), 2);
        assert_eq!(token.run, None);
    }

    #[test]
    fn a_chunk_speaks_for_all_before_it() {
        let emission = Emission {
            run: "r".into(),
            table: 1,
            chunk: 4,
            attempt: Attempt { incarnation: 3, serial: 9 },
            cursor: Some(cursor("500")),
            read: 500,
            rows: (),
            dropped: Vec::new(),
        };
        assert_eq!(RunToken::after(&emission), at("r", 5, (3, 9)));
    }
}
