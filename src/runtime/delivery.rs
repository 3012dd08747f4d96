//! What goes to a sink together: steps in order, each with what the mapping's token says once it is done.
//!
//! Documents of several pieces of work go out in one call, up to a number and a size. A step's token speaks for
//! the work that is whole with it, and for no later one.

use std::collections::BTreeMap;

use crate::{
    model::{Documents, Place},
    pipeline::Placing,
};

use super::token::{Advance, Token};

/// One thing for the sink to do.
#[derive(Debug)]
pub(super) enum Step {
    Deliver(Documents),
    /// Empties a destination, and the place where it is built.
    Purge {
        destination: String,
        place: Option<Place>,
    },
    /// Does something with a place of a destination.
    Place {
        destination: String,
        placing: Placing,
    },
}

/// A step, and what is in the sink after it.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) step: Step,
    pub(super) token: Token,
}

/// What may go out in one call. A single piece of work may be larger, and goes alone then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) documents: usize,
    pub(super) bytes: usize,
}

/// How much goes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    documents: usize,
    bytes: usize,
}

impl Load {
    pub(super) fn of(steps: &[Step]) -> Self {
        steps.iter().fold(Self::default(), |load, step| match step {
            Step::Deliver(documents) => {
                load.with(Self { documents: documents.len(), bytes: documents.bytes.len() })
            }
            Step::Purge { .. } | Step::Place { .. } => load,
        })
    }

    pub(super) fn documents(self) -> usize {
        self.documents
    }

    /// Both together.
    pub(super) fn with(self, more: Self) -> Self {
        Self {
            documents: self.documents.saturating_add(more.documents),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }

    pub(super) fn fits(self, bounds: Bounds) -> bool {
        self.documents <= bounds.documents && self.bytes <= bounds.bytes
    }
}

/// The steps of one piece of work, and what it means for the token.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) advance: Advance,
    pub(super) generation: i64,
    pub(super) steps: Vec<Step>,
}

/// Lines pieces of work up, and moves the token past them.
///
/// Work without a step rides with the step before it, or waits for the next one: storing a token alone would
/// cost a sync and save nothing but passing over the same changes again.
pub(super) fn line_up(pieces: impl IntoIterator<Item = Piece>, token: &mut Token) -> Vec<Outgoing> {
    let mut lined: Vec<Outgoing> = Vec::new();
    for Piece { advance, generation, steps } in pieces {
        token.go_back(&advance);
        let before = token.clone();
        token.add(&advance, generation);
        if steps.is_empty() {
            if let Some(last) = lined.last_mut() {
                last.token.clone_from(token);
            }
            continue;
        }
        let last = steps.len() - 1;
        for (at, step) in steps.into_iter().enumerate() {
            push(&mut lined, step, if at == last { token.clone() } else { before.clone() });
        }
    }
    lined
}

/// Appends a step; documents of the same kind join those before them.
fn push(lined: &mut Vec<Outgoing>, step: Step, token: Token) {
    if let (Some(Outgoing { step: Step::Deliver(before), token: said }), Step::Deliver(more)) =
        (lined.last_mut(), &step)
        && (before.origin, before.generation, &before.beside) == (more.origin, more.generation, &more.beside)
    {
        before.append(more);
        *said = token;
        return;
    }
    lined.push(Outgoing { step, token });
}

/// For each mapping, given as name, what its sink writes to, and destination, the others that write to the same place.
pub(super) fn shared_destinations<'a>(
    routes: impl IntoIterator<Item = (&'a str, String, &'a str)>,
) -> BTreeMap<String, Vec<String>> {
    let mut by_place: BTreeMap<(String, &str), Vec<&str>> = BTreeMap::new();
    for (mapping, sink, destination) in routes {
        by_place.entry((sink, destination)).or_default().push(mapping);
    }
    let others = |all: &[&str], one: &str| {
        all.iter().filter(|name| **name != one).map(|name| (*name).to_owned()).collect()
    };
    by_place
        .values()
        .flat_map(|all| all.iter().map(move |name| ((*name).to_owned(), others(all, name))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Lsn, Origin},
        runtime::token::{History, RunAdvance, RunToken},
    };

    fn token(position: u64) -> Token {
        Token {
            installation: "shop".to_owned(),
            mapping: "products".to_owned(),
            history: History { system: "7".to_owned(), timeline: 1 },
            leadership: 1,
            generation: 1,
            position: Lsn(position),
            run: None,
        }
    }

    fn documents(origin: Origin, ids: &[&str]) -> Step {
        let mut documents = Documents::new("public.products", origin, 1);
        ids.iter().for_each(|id| documents.upsert("products", id, "{}"));
        Step::Deliver(documents)
    }

    fn purge() -> Step {
        Step::Purge { destination: "products".into(), place: None }
    }

    fn live(from: u64, position: u64, steps: Vec<Step>) -> Piece {
        let advance = Advance { from: Lsn(from), position: Lsn(position), run: RunAdvance::Same };
        Piece { advance, generation: 1, steps }
    }

    fn chunk(at: u64, chunks: u64, steps: Vec<Step>) -> Piece {
        let run = RunToken { run: "r".into(), cursor: None, rows: chunks, chunks, term: 1, serial: chunks };
        let advance = Advance { from: Lsn(at), position: Lsn(at), run: RunAdvance::At(run) };
        Piece { advance, generation: 1, steps }
    }

    /// Each step: how many documents (none for a purge), the position, the chunks.
    fn seen(lined: &[Outgoing]) -> Vec<(Option<usize>, u64, u64)> {
        let one = |outgoing: &Outgoing| {
            let documents = match &outgoing.step {
                Step::Deliver(documents) => Some(documents.len()),
                Step::Purge { .. } | Step::Place { .. } => None,
            };
            let chunks = outgoing.token.run.as_ref().map_or(0, |run| run.chunks);
            (documents, outgoing.token.position.0, chunks)
        };
        lined.iter().map(one).collect()
    }

    use Origin::{Backfill, Stream};

    #[test]
    fn a_step_speaks_for_the_last_work_that_is_whole_with_it() {
        let mut token = token(10);
        let pieces = vec![
            live(10, 20, vec![documents(Stream, &["1"])]),
            live(20, 30, vec![documents(Stream, &["2", "3"])]),
            chunk(30, 1, vec![documents(Backfill, &["7"])]),
            live(30, 40, vec![documents(Stream, &["4"])]),
        ];
        let lined = line_up(pieces, &mut token);
        assert_eq!(seen(&lined), [(Some(3), 30, 0), (Some(1), 30, 1), (Some(1), 40, 1)]);
        assert_eq!(token.position, Lsn(40));
    }

    #[test]
    fn work_in_several_steps_counts_with_its_last() {
        let mut token = token(10);
        let purged = vec![documents(Stream, &["2"]), purge(), documents(Stream, &["3"])];
        let pieces = vec![
            live(10, 20, vec![documents(Stream, &["1"])]),
            live(20, 30, purged),
            live(30, 40, Vec::new()),
        ];
        let lined = line_up(pieces, &mut token);
        assert_eq!(seen(&lined), [(Some(2), 20, 0), (None, 20, 0), (Some(1), 40, 0)]);
    }

    #[test]
    fn work_without_documents_waits_for_the_next() {
        let mut token = token(10);
        assert!(line_up(vec![live(10, 20, Vec::new()), chunk(20, 3, Vec::new())], &mut token).is_empty());
        let lined = line_up(vec![live(20, 30, vec![documents(Stream, &["1"])])], &mut token);
        assert_eq!(seen(&lined), [(Some(1), 30, 3)]);
    }

    /// After a lane was let go the stream is read again: older versions come back for a while, and the token has
    /// to go back with them, from the first step on.
    #[test]
    fn what_is_handed_out_again_takes_the_token_back() {
        let mut token = token(90);
        let steps = || vec![documents(Stream, &["1"]), purge()];
        assert_eq!(
            seen(&line_up(vec![live(40, 50, steps())], &mut token)),
            [(Some(1), 40, 0), (None, 50, 0)]
        );
        let page = vec![live(50, 50, vec![documents(Stream, &["2"])])];
        assert_eq!(seen(&line_up(page, &mut token)), [(Some(1), 50, 0)]);
    }

    #[test]
    fn mappings_that_share_a_destination_know_each_other() {
        let routes = [
            ("a", "db", "all"),
            ("b", "db", "all"),
            ("c", "db", "own"),
            ("d", "log", "all"),
            ("e", "db", "all"),
        ];
        let shared = shared_destinations(routes.map(|(name, sink, to)| (name, sink.to_owned(), to)));
        assert_eq!(shared["a"], ["b", "e"]);
        assert_eq!(shared["e"], ["a", "b"]);
        assert!(shared["c"].is_empty() && shared["d"].is_empty(), "{shared:?}");
    }

    #[test]
    fn what_goes_out_together_is_bounded_by_number_and_size() {
        let load = Load::of(&[documents(Stream, &["1", "22"]), purge()]);
        assert_eq!(load, Load { documents: 2, bytes: 7 });
        let twice = load.with(load);
        assert!(twice.fits(Bounds { documents: 4, bytes: 14 }));
        assert!(!twice.fits(Bounds { documents: 3, bytes: 14 }));
        assert!(!twice.fits(Bounds { documents: 4, bytes: 13 }));
    }
}
