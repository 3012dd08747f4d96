//! Places of a destination: where a sink builds a generation beside what readers see.

use std::{fmt, str::FromStr, sync::Arc};

/// One building of one destination: `<generation>-<eight hex digits>`, never the same for another building.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    generation: i64,
    name: Arc<str>,
}

impl Place {
    /// A place for a generation. The `token` tells it from other attempts at the same one.
    #[must_use]
    pub fn new(generation: i64, token: u32) -> Self {
        Self { generation, name: format!("{generation}-{token:08x}").into() }
    }

    /// The generation that is built there.
    #[must_use]
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Its name, as sinks get it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// No place has such a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a place is named `<generation>-<eight hex digits>`")]
pub struct ParsePlaceError;

impl FromStr for Place {
    type Err = ParsePlaceError;

    fn from_str(text: &str) -> Result<Self, ParsePlaceError> {
        let (generation, token) = text.split_once('-').ok_or(ParsePlaceError)?;
        let generation = generation.parse().map_err(|_| ParsePlaceError)?;
        let place = Self::new(generation, u32::from_str_radix(token, 16).map_err(|_| ParsePlaceError)?);
        if place.as_str() == text { Ok(place) } else { Err(ParsePlaceError) }
    }
}

/// Where documents go while a destination is built beside what its readers see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The destination that is built. Documents that name another one go there as ever.
    pub destination: String,
    /// Where it is built; none where that is given up, and nothing is to go there any more.
    pub place: Option<Place>,
    /// Whether they go to what readers see, too.
    pub shown: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let place = Place::new(12, 0xab);
        assert_eq!(place.to_string(), "12-000000ab");
        assert_eq!("12-000000ab".parse(), Ok(place));
        for bad in ["", "12", "12-", "x-000000ab", "12-ab", "12-000000AB", "012-000000ab", "12-000000abc"] {
            assert_eq!(bad.parse::<Place>(), Err(ParsePlaceError), "{bad}");
        }
    }
}
