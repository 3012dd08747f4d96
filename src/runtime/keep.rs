//! What guests keep: in memory for reading, in the state schema for good.
//!
//! Guarantees that a call's writes are durable before anybody goes on, that a mapping's generations are apart, and that
//! a host that leads no more writes nothing. Memory is bounded: all of a mapping's keys and values are held, which are
//! as large as it is granted.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::{
    model::{Failure, FailureClass},
    plugin::{
        grants::StateGrant,
        services::{KeyValues, Writes},
    },
    postgres::{Client, ConnectSettings, Purpose},
    state::{StateError, Store},
};

/// One term's connection for it, made when it is first needed.
#[derive(Debug)]
pub(super) struct Keeper {
    settings: ConnectSettings,
    store: Store,
    term: i64,
    client: Mutex<Option<Client>>,
}

impl Keeper {
    pub(super) fn new(settings: ConnectSettings, installation: &str, term: i64) -> Arc<Self> {
        Arc::new(Self { settings, store: Store::new(installation), term, client: Mutex::default() })
    }

    /// The store of one mapping's generation.
    pub(super) fn of(self: &Arc<Self>, mapping: &str, generation: i64) -> Arc<dyn KeyValues> {
        let held = Mutex::default();
        Arc::new(Kept { keeper: Arc::clone(self), mapping: mapping.to_owned(), generation, held })
    }

    async fn with<T>(
        &self,
        work: impl AsyncFnOnce(&Store, &Client) -> Result<T, StateError>,
    ) -> Result<T, Failure> {
        let failed = |error: String| {
            Failure::new(
                FailureClass::Retry,
                "state-connection",
                format!("the state cannot be reached: {error}"),
            )
        };
        // Taken out: whoever gives up in the middle leaves no session behind whose state is not known.
        let mut place = self.client.lock().await;
        let client = match place.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.settings.connect(Purpose::State).await.map_err(|error| failed(error.to_string()))?,
        };
        let done = work(&self.store, &client).await.map_err(|error| failed(error.to_string()))?;
        *place = Some(client);
        Ok(done)
    }
}

/// See [`Keeper::of`].
#[derive(Debug)]
struct Kept {
    keeper: Arc<Keeper>,
    mapping: String,
    generation: i64,
    /// None until it is read, and after a write of which nobody knows.
    held: Mutex<Option<Held>>,
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
}

impl Kept {
    async fn read<T>(&self, look: impl FnOnce(&mut Held) -> T) -> Result<T, Failure> {
        let mut held = self.held.lock().await;
        let held = match &mut *held {
            Some(held) => held,
            empty => empty.insert(self.load().await?),
        };
        Ok(look(held))
    }

    async fn load(&self) -> Result<Held, Failure> {
        let (mapping, generation) = (self.mapping.as_str(), self.generation);
        let rows =
            self.keeper.with(async |store, client| store.guest_state(client, mapping, generation).await);
        let mut held = Held::default();
        rows.await?.into_iter().for_each(|(key, value)| held.put(key, Some(value)));
        Ok(held)
    }
}

#[async_trait]
impl KeyValues for Kept {
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
        let (keys, bytes) = self.read(|held| held.after(&writes)).await?;
        if bytes > grant.max_bytes {
            let message = format!("the mapping {} would keep {bytes} bytes", self.mapping);
            return Err(Failure::new(FailureClass::Fatal, "state-bytes", message));
        }
        if keys > grant.max_keys {
            let message = format!("the mapping {} would keep {keys} keys", self.mapping);
            return Err(Failure::new(FailureClass::Fatal, "state-keys", message));
        }
        let writes: Vec<_> = writes.into_iter().collect();
        let mut place = self.held.lock().await;
        // Read anew, should nobody get to know whether it was written.
        let held = place.take();
        let of = (self.mapping.as_str(), self.generation);
        let term = self.keeper.term;
        let written =
            self.keeper.with(async |store, client| store.write_guest_state(client, term, of, &writes).await);
        if !written.await? {
            let message = "another host leads, and this one writes no state any more";
            return Err(Failure::new(FailureClass::Retry, "state-leader", message));
        }
        if let Some(mut held) = held {
            writes.into_iter().for_each(|(key, value)| held.put(key, value));
            *place = Some(held);
        }
        Ok(())
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
}
