//! Write sinks: where documents go.
//!
//! With the cargo feature `sink`. A sink is a type that implements [`Sink`]; [`export_sink!`](crate::export_sink) makes
//! a WebAssembly component of it, and [`testing`](crate::testing) runs it natively.
//!
//! ```
//! use anabranch_sdk::{Failure, sink::{Batch, Delivered, Sink}};
//! use serde::Deserialize;
//!
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Settings {
//!     most: usize,
//! }
//!
//! /// Takes documents up to a length, and forgets them.
//! struct Short(Settings);
//!
//! impl Sink for Short {
//!     type Settings = Settings;
//!
//!     fn open(settings: Settings) -> Result<Self, Failure> {
//!         Ok(Self(settings))
//!     }
//!
//!     fn deliver(&mut self, batch: &Batch<'_>) -> Result<Vec<Delivered>, Failure> {
//!         Ok(batch.each(|document| match document.body {
//!             Some(body) if body.len() > self.0.most => {
//!                 Err(Failure::poison("too-long", format!("it has {} bytes", body.len())))
//!             }
//!             _ => Ok(()),
//!         }))
//!     }
//! }
//!
//! anabranch_sdk::export_sink!(Short);
//! # fn main() {}
//! ```

use std::cell::RefCell;

use serde::de::DeserializeOwned;

use crate::{
    Failure, Origin,
    msgpack::{Malformed, Reader, Token, write},
};

/// What became of one document: accepted, which means that it is durable, or why not.
pub type Delivered = Result<(), Failure>;

/// Delivers documents.
///
/// There may be several instances of a sink, each with a state of its own, and instances are replaced now and then. The
/// documents of one mapping come in order and one batch after the other.
pub trait Sink: Sized + 'static {
    /// The settings: the `config` of the `[sink.<name>]` table. Refuse what is unknown
    /// (`#[serde(deny_unknown_fields)]`), so that a misspelt setting is told.
    type Settings: DeserializeOwned;

    /// Begins with settings. Called once on each instance, before anything else: be quick.
    ///
    /// # Errors
    /// The settings cannot work: class fatal.
    fn open(settings: Self::Settings) -> Result<Self, Failure>;

    /// Delivers a batch, in order, and gives one result for each document, in order. What is accepted is durable when
    /// this returns. The same documents come again after a failure, and after a restart of the host.
    ///
    /// # Errors
    /// Nothing is known to be accepted.
    fn deliver(&mut self, batch: &Batch<'_>) -> Result<Vec<Delivered>, Failure>;
}

/// A sink that can empty a destination: `export_sink!(MySink, purge)`.
pub trait Purge: Sink {
    /// Removes every document of a destination. One that does not exist is empty already.
    ///
    /// # Errors
    /// The destination is not known to be empty.
    fn purge(&mut self, destination: &str) -> Result<(), Failure>;
}

/// A sink that can build a destination beside what its readers see, and show it to them at once:
/// `export_sink!(MySink, generations)`, or `export_sink!(MySink, purge, generations)`.
///
/// The host begins a place for each rebuild, fills it ([`Batch::place`] says what is for it), and switches once it is
/// whole. Live documents go there and to what readers see until then. Each function may be called again with the same
/// words, by another instance, too, and comes to the same.
pub trait Generations: Sink {
    /// Makes an empty place for a destination; one of that name that is there is emptied. Gives whether readers see
    /// anything under the destination now: where not, the host switches at once.
    ///
    /// # Errors
    /// There is no such place, or it is not empty.
    fn begin(&mut self, destination: &str, place: &str) -> Result<bool, Failure>;

    /// Shows the place to the readers of the destination, in one step. All other places of it are removed.
    ///
    /// # Errors
    /// Readers may not see the place; where it is not there any more, of class fatal.
    fn switch(&mut self, destination: &str, place: &str) -> Result<(), Failure>;

    /// Removes a place that is of no use any more; one that readers see stays, and one that is not there is removed
    /// already.
    ///
    /// # Errors
    /// The place may still be there.
    fn abandon(&mut self, destination: &str, place: &str) -> Result<(), Failure>;
}

/// Documents of one mapping, in commit order. Several may have the same id: the last one wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    /// The table whose rows made them, as `schema.table`.
    pub entity: &'a str,
    /// Which way they came.
    pub origin: Origin,
    /// Counts the rebuilds of the mapping.
    pub generation: i64,
    /// The place that they are for, where a sink with [`Generations`] builds their destination, which is one then. None:
    /// they are for what readers see.
    pub place: Option<&'a str>,
    /// The documents.
    pub documents: Vec<Document<'a>>,
}

/// A document, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// Where it goes.
    pub destination: &'a str,
    /// Its id.
    pub id: &'a str,
    /// Its JSON text, to be put under the id whether one is there or not. None: the id is to be removed, whether it is
    /// there or not.
    pub body: Option<&'a str>,
    /// Position of the commit that made it; 0 where a backfill read the row.
    pub lsn: u64,
    /// When that was committed: microseconds since 1970-01-01 UTC.
    pub commit_time_us: i64,
}

impl<'a> Batch<'a> {
    /// One result for each document, by a function.
    pub fn each(&self, result: impl FnMut(&Document<'a>) -> Delivered) -> Vec<Delivered> {
        self.documents.iter().map(result).collect()
    }

    /// Every document was accepted.
    #[must_use]
    pub fn accepted(&self) -> Vec<Delivered> {
        self.each(|_| Ok(()))
    }

    /// Reads a batch as the host sends it.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Failure> {
        let mut reader = Reader::new(bytes);
        let mut batch =
            Self { entity: "", origin: Origin::Stream, generation: 0, place: None, documents: Vec::new() };
        let mut destinations = Vec::new();
        let mut documents = None;
        for _ in 0..reader.map()? {
            match reader.text()? {
                "v" => {
                    let version = reader.unsigned()?;
                    if version != 1 {
                        let message = format!("this plugin reads payload version 1, the host sent {version}");
                        return Err(Failure::fatal("payload-version", message));
                    }
                }
                "entity" => batch.entity = reader.text()?,
                "origin" if reader.text()? == "backfill" => batch.origin = Origin::Backfill,
                "origin" => {}
                "generation" => batch.generation = reader.signed()?,
                "place" => batch.place = Some(reader.text()?),
                "destinations" => {
                    let count = reader.array()?;
                    destinations = (0..count).map(|_| reader.text()).collect::<Result<_, _>>()?;
                }
                "documents" => {
                    documents = Some(reader);
                    reader.skip()?;
                }
                _ => reader.skip()?,
            }
        }
        let mut reader = documents.ok_or(Malformed { at: reader.at(), expected: "`documents`" })?;
        for _ in 0..reader.array()? {
            batch.documents.push(document(&mut reader, &destinations)?);
        }
        Ok(batch)
    }
}

fn document<'a>(reader: &mut Reader<'a>, destinations: &[&'a str]) -> Result<Document<'a>, Failure> {
    let elements = reader.array()?;
    let operation = reader.text()?;
    let id = reader.text()?;
    let at = reader.at();
    let destination = usize::try_from(reader.unsigned()?).ok().and_then(|index| destinations.get(index));
    let destination = destination.ok_or(Malformed { at, expected: "the index of a destination" })?;
    let body = match (reader.next()?, operation) {
        (Token::Bin(body), "upsert") => Some(
            std::str::from_utf8(body)
                .map_err(|_| Malformed { at: reader.at(), expected: "a body in UTF-8" })?,
        ),
        (Token::Nil, "delete") => None,
        (Token::Bin(_) | Token::Nil, "upsert" | "delete") => {
            return Err(
                Malformed { at: reader.at(), expected: "a body for an upsert, none for a delete" }.into()
            );
        }
        _ => return Err(Failure::fatal("operation", format!("operation `{operation}` is not known"))),
    };
    let lsn = reader.unsigned()?;
    let commit_time_us = reader.signed()?;
    for _ in 6..elements {
        reader.skip()?;
    }
    Ok(Document { destination, id, body, lsn, commit_time_us })
}

/// Writes results as the host reads them.
fn write_results(results: &[Delivered]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + 2 * results.len());
    write::array(&mut out, results.len());
    for result in results {
        match result {
            Ok(()) => out.extend_from_slice(&[0x91, 0x00]),
            Err(failure) => {
                write::array(&mut out, if failure.retry_after.is_some() { 5 } else { 4 });
                out.push(0x01);
                write::str(&mut out, failure.class.as_str());
                write::str(&mut out, &failure.code);
                write::str(&mut out, &failure.message);
                if let Some(after) = failure.retry_after {
                    write::unsigned(&mut out, u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
                }
            }
        }
    }
    out
}

/// Settings from the host's JSON.
pub(crate) fn settings<S: Sink>(config: &str) -> Result<S::Settings, Failure> {
    serde_json::from_str(config).map_err(|error| {
        // What serde says of a value may quote it, and a value may be a secret: only unknown and missing names are told.
        let said = error.to_string();
        let named = said.starts_with("unknown field") || said.starts_with("missing field");
        let what =
            if named { said } else { format!("a value has the wrong type ({:?} error)", error.classify()) };
        let at = format!(" at line {} column {}", error.line(), error.column());
        let what = what.strip_suffix(&at).unwrap_or(&what);
        Failure::fatal("settings", format!("`config` of the sink: {what}"))
    })
}

/// The one sink of an instance.
#[doc(hidden)]
#[derive(Debug)]
pub struct Cell<S>(RefCell<Option<S>>);

impl<S: Sink> Cell<S> {
    /// Not opened yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }

    /// `open` of the interface.
    ///
    /// # Errors
    /// What the sink says.
    pub fn open(&self, config: &str) -> Result<(), Failure> {
        let sink = S::open(settings::<S>(config)?)?;
        *self.0.borrow_mut() = Some(sink);
        Ok(())
    }

    /// `deliver` of the interface.
    ///
    /// # Errors
    /// What the sink says, or that the batch cannot be read.
    pub fn deliver(&self, batch: &[u8]) -> Result<Vec<u8>, Failure> {
        let batch = Batch::read(batch)?;
        self.with(|sink| sink.deliver(&batch)).map(|results| write_results(&results))
    }

    /// `purge` of the interface.
    ///
    /// # Errors
    /// What the sink says.
    pub fn purge(&self, destination: &str) -> Result<(), Failure>
    where
        S: Purge,
    {
        self.with(|sink| sink.purge(destination))
    }

    /// `begin` of the interface.
    ///
    /// # Errors
    /// What the sink says.
    pub fn begin(&self, destination: &str, place: &str) -> Result<bool, Failure>
    where
        S: Generations,
    {
        self.with(|sink| sink.begin(destination, place))
    }

    /// `switch` of the interface.
    ///
    /// # Errors
    /// What the sink says.
    pub fn switch(&self, destination: &str, place: &str) -> Result<(), Failure>
    where
        S: Generations,
    {
        self.with(|sink| sink.switch(destination, place))
    }

    /// `abandon` of the interface.
    ///
    /// # Errors
    /// What the sink says.
    pub fn abandon(&self, destination: &str, place: &str) -> Result<(), Failure>
    where
        S: Generations,
    {
        self.with(|sink| sink.abandon(destination, place))
    }

    fn with<T>(&self, call: impl FnOnce(&mut S) -> Result<T, Failure>) -> Result<T, Failure> {
        match &mut *self.0.borrow_mut() {
            Some(sink) => call(sink),
            None => Err(Failure::fatal("not-open", "the sink was not opened")),
        }
    }
}

impl<S: Sink> Default for Cell<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// Exports a [`Sink`] as a component; `export_sink!(MySink, purge)` one that also implements [`Purge`],
/// `export_sink!(MySink, generations)` one with [`Generations`], and `export_sink!(MySink, purge, generations)` one with
/// both. Once in a crate, which must be a `cdylib`.
///
/// The plugin's name and version are those of its Cargo.toml; the environment variable `ANABRANCH_PLUGIN_VERSION`
/// overrides the version at build time.
#[macro_export]
macro_rules! export_sink {
    ($sink:ty $(, $optional:ident)* $(,)?) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            $crate::export_sink!(@sink $sink);
            $($crate::export_sink!(@$optional);)*
        };
    };
    (@purge) => {
            impl $crate::bindings::purge::exports::anabranch::plugin::purge::Guest for Component {
                fn purge(
                    destination: ::std::string::String,
                ) -> ::core::result::Result<(), $crate::bindings::anabranch::plugin::types::Failure> {
                    SINK.with(|sink| sink.purge(&destination)).map_err(::core::convert::Into::into)
                }
            }

            $crate::bindings::purge::export_purge!(Component with_types_in $crate::bindings::purge);
    };
    (@generations) => {
            impl $crate::bindings::generations::exports::anabranch::plugin::generations::Guest for Component {
                fn begin(
                    destination: ::std::string::String,
                    place: ::std::string::String,
                ) -> ::core::result::Result<bool, $crate::bindings::anabranch::plugin::types::Failure> {
                    SINK.with(|sink| sink.begin(&destination, &place)).map_err(::core::convert::Into::into)
                }

                fn switch(
                    destination: ::std::string::String,
                    place: ::std::string::String,
                ) -> ::core::result::Result<(), $crate::bindings::anabranch::plugin::types::Failure> {
                    SINK.with(|sink| sink.switch(&destination, &place)).map_err(::core::convert::Into::into)
                }

                fn abandon(
                    destination: ::std::string::String,
                    place: ::std::string::String,
                ) -> ::core::result::Result<(), $crate::bindings::anabranch::plugin::types::Failure> {
                    SINK.with(|sink| sink.abandon(&destination, &place)).map_err(::core::convert::Into::into)
                }
            }

            $crate::bindings::generations::export_generations!(
                Component with_types_in $crate::bindings::generations
            );
    };
    (@sink $sink:ty) => {
            struct Component;

            ::std::thread_local! {
                static SINK: $crate::sink::Cell<$sink> = const { $crate::sink::Cell::new() };
            }

            impl $crate::bindings::sink::exports::anabranch::plugin::describe::Guest for Component {
                fn describe() -> ::std::string::String {
                    let version = match ::core::option_env!("ANABRANCH_PLUGIN_VERSION") {
                        ::core::option::Option::Some(version) => version,
                        ::core::option::Option::None => ::core::env!("CARGO_PKG_VERSION"),
                    };
                    $crate::internal::describe_sink(::core::env!("CARGO_PKG_NAME"), version)
                }
            }

            impl $crate::bindings::sink::exports::anabranch::plugin::sink::Guest for Component {
                fn open(
                    config: ::std::string::String,
                ) -> ::core::result::Result<(), $crate::bindings::anabranch::plugin::types::Failure> {
                    $crate::internal::log_panics();
                    SINK.with(|sink| sink.open(&config)).map_err(::core::convert::Into::into)
                }

                fn deliver(
                    batch: ::std::vec::Vec<u8>,
                ) -> ::core::result::Result<
                    ::std::vec::Vec<u8>,
                    $crate::bindings::anabranch::plugin::types::Failure,
                > {
                    SINK.with(|sink| sink.deliver(&batch)).map_err(::core::convert::Into::into)
                }
            }

            $crate::bindings::sink::export_sink_plugin!(Component with_types_in $crate::bindings::sink);
    };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::Deserialize;

    use super::*;

    /// As the host writes it: `tests/golden/payload/deliver.msgpack.hex`.
    fn golden() -> Vec<u8> {
        bytes(include_str!("../../../tests/golden/payload/deliver.msgpack.hex"))
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let hex: String = hex.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    #[test]
    fn the_golden_batch_is_read() {
        let whole = golden();
        let batch = Batch::read(&whole).unwrap();
        assert_eq!((batch.entity, batch.origin, batch.generation), ("public.products", Origin::Stream, 3));
        assert_eq!(batch.place, None);
        let placed = bytes(include_str!("../../../tests/golden/payload/deliver-place.msgpack.hex"));
        let placed = Batch::read(&placed).unwrap();
        assert_eq!((placed.place, placed.documents.len()), (Some("3-5f2c81d0"), 2));
        let seen: Vec<_> = batch
            .documents
            .iter()
            .map(|document| (document.destination, document.id, document.body, document.lsn))
            .collect();
        assert_eq!(
            seen,
            [
                ("products", "7", Some("{\"a\": 1.50,\n \"b\": \"\\ud800\"}"), 0x16_B374_D848),
                ("products", "8 \"Uno\"", None, u64::MAX),
                ("all", "é", Some("null"), 0),
            ]
        );
        for cut in 0..whole.len() {
            assert!(Batch::read(&whole[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn results_are_written_as_the_page_has_them() {
        let busy = Failure::retry("busy", "later").after(Duration::from_millis(1500));
        let results = [Ok(()), Err(busy), Err(Failure::poison("bad", "never"))];
        let expected = b"\x93\x91\x00\x95\x01\xa5retry\xa4busy\xa5later\xcf\0\0\0\0\0\0\x05\xdc\x94\x01\xa6poison\xa3bad\xa5never";
        assert_eq!(write_results(&results), expected);
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        #[serde(rename = "most")]
        _most: u8,
    }

    struct Any;

    impl Sink for Any {
        type Settings = Settings;

        fn open(_: Settings) -> Result<Self, Failure> {
            Ok(Self)
        }

        fn deliver(&mut self, batch: &Batch<'_>) -> Result<Vec<Delivered>, Failure> {
            Ok(batch.accepted())
        }
    }

    #[test]
    fn c096_wrong_settings_are_told_without_their_values() {
        let error = |config: &str| settings::<Any>(config).unwrap_err().message;
        assert_eq!(error("{}"), "`config` of the sink: missing field `most`");
        assert!(error("{\"most\":1,\"mots\":2}").contains("unknown field `mots`, expected `most`"));
        let typed = error("{\"most\":\"marker-4711\"}");
        assert!(typed.contains("wrong type") && !typed.contains("marker"), "{typed}");
        assert!(settings::<Any>("{\"most\":1}").is_ok());
    }

    #[test]
    fn a_sink_is_opened_before_it_delivers() {
        let cell = Cell::<Any>::new();
        assert_eq!(cell.deliver(&golden()).unwrap_err().code, "not-open");
        cell.open("{\"most\":1}").unwrap();
        assert_eq!(cell.deliver(&golden()).unwrap(), b"\x93\x91\x00\x91\x00\x91\x00");
    }
}
