//! What guests keep: in memory for reading, in the state schema for good.
//!
//! Guarantees that a call's writes are durable before anybody goes on, that a mapping's generations are apart, and that
//! a host that leads no more writes nothing. Mappings have a connection each, so that none waits for another's; what is
//! begun is brought to its end though nobody waits for it, so that a store that takes long to read is read once. Memory is
//! bounded: all of a mapping's keys and values are held, which are as large as it is granted.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use async_trait::async_trait;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::{
    model::{Failure, FailureClass},
    plugin::{
        grants::StateGrant,
        services::{KeyValues, Writes},
    },
    postgres::{Client, ConnectSettings, Purpose},
    state::{GuestWrite, Store},
};

/// How long the server waits for a lock that somebody else has, so that what nobody waits for has an end.
const LOCKS: &str = "set lock_timeout = '60s'";

/// What all stores of one term have in common.
#[derive(Debug)]
pub(super) struct Keeper {
    settings: ConnectSettings,
    store: Store,
    term: i64,
}

impl Keeper {
    pub(super) fn new(settings: ConnectSettings, installation: &str, term: i64) -> Arc<Self> {
        Arc::new(Self { settings, store: Store::new(installation), term })
    }

    /// The store of one mapping's generation, which may go on with what the one before kept.
    pub(super) fn of(self: &Arc<Self>, mapping: &str, generation: i64, inherits: bool) -> Arc<dyn KeyValues> {
        let (keeper, mapping) = (Arc::clone(self), mapping.to_owned());
        Arc::new(Kept { of: Arc::new(Of { keeper, mapping, generation, inherits }), place: Arc::default() })
    }
}

/// See [`Keeper::of`].
#[derive(Debug)]
struct Kept {
    of: Arc<Of>,
    place: Arc<Mutex<Place>>,
}

/// Whose store it is.
#[derive(Debug)]
struct Of {
    keeper: Arc<Keeper>,
    mapping: String,
    generation: i64,
    inherits: bool,
}

/// What is known of it here.
#[derive(Debug, Default)]
struct Place {
    /// None until it is read, and after a write of which nobody knows.
    held: Option<Held>,
    /// Made when it is first needed.
    client: Option<Client>,
}

impl Of {
    fn failed(&self, code: &str, what: &str) -> Failure {
        Failure::new(FailureClass::Retry, code, format!("the state of the mapping {} {what}", self.mapping))
    }

    fn unreached(&self, error: &dyn std::fmt::Display) -> Failure {
        self.failed("state-connection", &format!("cannot be reached: {error}"))
    }

    fn leads_no_more(&self) -> Failure {
        self.failed("state-leader", "is another host's, which leads now; this one writes none any more")
    }

    /// The connection, taken out: what fails in the middle leaves none behind whose state is not known.
    async fn client(&self, place: &mut Place) -> Result<Client, Failure> {
        if let Some(client) = place.client.take().filter(|client| !client.is_closed()) {
            return Ok(client);
        }
        let client = self.keeper.settings.connect(Purpose::State).await;
        let client = client.map_err(|error| self.unreached(&error))?;
        client.batch_execute(LOCKS).await.map_err(|error| self.unreached(&error))?;
        Ok(client)
    }

    async fn load(
        self: Arc<Self>,
        mut place: OwnedMutexGuard<Place>,
    ) -> Result<OwnedMutexGuard<Place>, Failure> {
        let client = self.client(&mut place).await?;
        let (keeper, of) = (&self.keeper, (self.mapping.as_str(), self.generation));
        let rows = keeper.store.guest_state(&client, keeper.term, of, self.inherits).await;
        let rows = rows.map_err(|error| self.unreached(&error))?.ok_or_else(|| self.leads_no_more())?;
        let mut held = Held::default();
        rows.into_iter().for_each(|(key, value)| held.put(key, Some(value)));
        (place.held, place.client) = (Some(held), Some(client));
        Ok(place)
    }

    async fn write(
        self: Arc<Self>,
        mut place: OwnedMutexGuard<Place>,
        writes: Vec<GuestWrite>,
    ) -> Result<(), Failure> {
        // Read anew, should nobody get to know whether it was written.
        let held = place.held.take();
        let client = self.client(&mut place).await?;
        let (keeper, of) = (&self.keeper, (self.mapping.as_str(), self.generation));
        let written = keeper.store.write_guest_state(&client, keeper.term, of, &writes).await;
        if !written.map_err(|error| self.unreached(&error))? {
            return Err(self.leads_no_more());
        }
        place.client = Some(client);
        if let Some(mut held) = held {
            writes.into_iter().for_each(|(key, value)| held.put(key, value));
            place.held = Some(held);
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Held {
    values: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

impl Held {
    fn put(&mut self, key: String, value: Option<Vec<u8>>) {
        let length = key.len();
        let old = match value {
            Some(value) => {
                self.bytes += length + value.len();
                self.values.insert(key, value)
            }
            None => self.values.remove(&key),
        };
        self.bytes -= old.map_or(0, |old| length + old.len());
    }

    /// Keys and bytes after some writes.
    fn after(&self, writes: &Writes) -> (usize, usize) {
        let (mut keys, mut bytes) = (self.values.len(), self.bytes);
        for (key, value) in writes {
            if let Some(old) = self.values.get(key) {
                keys -= 1;
                bytes -= key.len() + old.len();
            }
            if let Some(value) = value {
                keys += 1;
                bytes += key.len() + value.len();
            }
        }
        (keys, bytes)
    }

    /// Whether what is kept after some writes is granted.
    fn fits(&self, writes: &Writes, grant: &StateGrant, mapping: &str) -> Result<(), Failure> {
        let (keys, bytes) = self.after(writes);
        let refused = |code, what| {
            Failure::new(FailureClass::Fatal, code, format!("the mapping {mapping} would keep {what}"))
        };
        if bytes > grant.max_bytes {
            return Err(refused("state-bytes", format!("{bytes} bytes")));
        }
        if keys > grant.max_keys {
            return Err(refused("state-keys", format!("{keys} keys")));
        }
        Ok(())
    }
}

impl Kept {
    /// What is kept, read where it is not.
    async fn place(&self) -> Result<OwnedMutexGuard<Place>, Failure> {
        let place = Arc::clone(&self.place).lock_owned().await;
        match place.held {
            Some(_) => Ok(place),
            None => self.to_its_end(Arc::clone(&self.of).load(place)).await,
        }
    }

    /// Does what has to be done to the end, also where the caller waits no longer.
    async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let done = tokio::spawn(work).await;
        done.unwrap_or_else(|error| Err(self.of.unreached(&error)))
    }

    async fn read<T>(&self, look: impl FnOnce(&Held) -> T) -> Result<T, Failure> {
        let place = self.place().await?;
        Ok(look(place.held.as_ref().unwrap_or(&Held::default())))
    }
}

#[async_trait]
impl KeyValues for Kept {
    fn mapping(&self) -> &str {
        &self.of.mapping
    }

    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        self.read(|held| keys.iter().map(|key| held.values.get(key).cloned()).collect()).await
    }

    async fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, Failure> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.read(|held| {
            let range = held.values.range::<str, _>((from, Bound::Unbounded));
            range.map(|(key, _)| key).take_while(|key| key.starts_with(prefix)).take(limit).cloned().collect()
        })
        .await
    }

    async fn write(&self, writes: Writes, grant: &StateGrant) -> Result<(), Failure> {
        let place = self.place().await?;
        if let Some(held) = &place.held {
            held.fits(&writes, grant, &self.of.mapping)?;
        }
        self.to_its_end(Arc::clone(&self.of).write(place, writes.into_iter().collect())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted() {
        let mut held = Held::default();
        held.put("a".to_owned(), Some(vec![0; 10]));
        held.put("b".to_owned(), Some(vec![0; 1]));
        assert_eq!((held.values.len(), held.bytes), (2, 13));
        let writes = Writes::from([
            ("a".to_owned(), Some(vec![0; 5])),
            ("b".to_owned(), None),
            ("c".to_owned(), Some(Vec::new())),
            ("d".to_owned(), None),
        ]);
        assert_eq!(held.after(&writes), (2, 7));
        writes.into_iter().for_each(|(key, value)| held.put(key, value));
        assert_eq!((held.values.len(), held.bytes), (2, 7));
    }

    #[test]
    fn what_many_calls_keep_together_is_bounded() {
        let mut held = Held::default();
        held.put("a".to_owned(), Some(vec![0; 7]));
        let fits = |writes: &[(&str, Option<usize>)], max_bytes, max_keys| {
            let writes = writes.iter().map(|(key, size)| ((*key).to_owned(), size.map(|size| vec![0; size])));
            let fits = held.fits(&writes.collect(), &StateGrant { max_bytes, max_keys }, "m");
            fits.map_err(|failure| format!("{}: {}", failure.code, failure.message))
        };
        assert_eq!(fits(&[("b", Some(7))], 16, 2), Ok(()));
        assert_eq!(
            fits(&[("b", Some(8))], 16, 2),
            Err("state-bytes: the mapping m would keep 17 bytes".to_owned())
        );
        assert_eq!(
            fits(&[("b", Some(0)), ("c", Some(0))], 16, 2),
            Err("state-keys: the mapping m would keep 3 keys".to_owned())
        );
        assert_eq!(
            fits(&[("a", None), ("b", Some(8)), ("c", Some(6))], 16, 2),
            Ok(()),
            "what goes makes room"
        );
    }
}
