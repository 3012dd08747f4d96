//! A host of a suspended installation: it settles the suspension where it leads, and idles until it is resumed.
//!
//! It never streams, makes no slot and no publication, and does not look at config and source further than the
//! state schema: while the source is being upgraded or migrated, neither need be ready.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    control,
    postgres::{self, Client},
    state::{CHANNEL, Store, Suspension},
};

use super::{
    answer::{ANSWER_LIMIT, answered},
    error::TermError,
    term::Context,
};

/// How often the state schema is read without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How often the log says that nothing goes on.
const TELL_EVERY: Duration = Duration::from_secs(600);

/// The suspension that holds now; the state schema may be of an older release.
pub(super) async fn suspension(context: &Context, client: &Client) -> Result<Option<Suspension>, TermError> {
    let store = Store::new(context.config.source.slot.as_str());
    Ok(store.suspension_before_upgrade(client).await?.filter(Suspension::holds))
}

/// Idles while the installation is suspended. False when it was told to stop, true when there is something to
/// do.
///
/// # Errors
/// The connection broke, or what is to be dropped cannot be: the supervisor tries again.
pub(super) async fn idle(
    context: &Context,
    mut client: Client,
    suspension: Suspension,
    shutdown: &CancellationToken,
) -> Result<bool, TermError> {
    if !suspension.settled {
        control::settle(&context.settings, &context.config.source.slot, shutdown).await?;
        if shutdown.is_cancelled() {
            return Ok(false);
        }
    }
    client.batch_execute(&format!("listen {CHANNEL}")).await.map_err(postgres::Error::from)?;
    let mut told: Option<Instant> = None;
    let installation = context.config.source.slot.as_str();
    let store = Store::new(installation);
    // What was settled by somebody else may have been asked anew, without the slot.
    loop {
        let asked = answered("whether it is suspended", ANSWER_LIMIT, store.suspension(&client));
        let Some(suspension) = asked.await?.filter(Suspension::holds) else { break };
        if !suspension.settled {
            return Ok(true);
        }
        if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            told = Some(Instant::now());
            tell(installation, &suspension);
        }
        let woken = timeout(POLL_INTERVAL, client.notification());
        match shutdown.run_until_cancelled(woken).await {
            None => return Ok(false),
            Some(Ok(None)) => return Err(client.ended().await.into()),
            Some(_) => {}
        }
    }
    info!(installation, "the installation is resumed");
    client.close().await;
    Ok(true)
}

fn tell(installation: &str, suspension: &Suspension) {
    let Suspension { since, reason, keep_slot, .. } = suspension;
    let reason = reason.as_deref().unwrap_or("no reason is given");
    if *keep_slot {
        warn!(
            installation,
            since,
            "suspended ({reason}): nothing is streamed, and the slot keeps all WAL until `anabranch resume`; watch \
             retained_bytes in `anabranch status`",
        );
    } else {
        info!(
            installation,
            since,
            "suspended ({reason}): nothing is streamed; `anabranch resume` makes the slot anew and builds every \
             mapped table again",
        );
    }
}
