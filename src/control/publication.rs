//! Taking the publication's column lists off for a while, and letting them be put on again.
//!
//! Guarantees that from the moment at which a widening returned no list names a column: a migration may drop it.
//! Nothing is missed: it stays the same publication, and the stream says which columns each row has.

use crate::{
    model::EntityName,
    postgres::{restore_publication, widen_publication},
};

use super::{Control, ControlError};

/// What became of a widening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Widened {
    /// The publication.
    pub publication: String,
    /// The tables that had a column list.
    pub tables: Vec<EntityName>,
}

/// What became of a restoring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The publication.
    pub publication: String,
    /// Whether its lists had been taken off.
    pub widened: bool,
}

impl Control {
    /// Takes all column lists off the publication, until [`Control::restore`]. May be repeated.
    ///
    /// # Errors
    /// No host has made the publication, it is somebody else's, or the server refuses.
    pub async fn widen(&self) -> Result<Widened, ControlError> {
        let publication = self.publication().await?;
        let tables = widen_publication(&self.client, &publication).await?;
        Ok(Widened { publication, tables })
    }

    /// Lets the leader put the lists on again, which it does within seconds, or at its next start.
    ///
    /// # Errors
    /// As [`Control::widen`].
    pub async fn restore(&self) -> Result<Restored, ControlError> {
        let publication = self.publication().await?;
        let widened = restore_publication(&self.client, &publication).await?;
        Ok(Restored { publication, widened })
    }

    async fn publication(&self) -> Result<String, ControlError> {
        self.writable().await?;
        let installation = self.store.installation(&self.client).await?;
        installation.map(|found| found.publication).ok_or_else(|| {
            let name = &self.installation;
            ControlError::Usage(format!("no host of the installation {name} has made a publication yet"))
        })
    }
}
