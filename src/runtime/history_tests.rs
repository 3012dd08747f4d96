use super::*;

const SLOT: &str = "shop";

fn stored(timeline: i32, term: i64, confirmed: u64) -> Installation {
    Installation {
        name: SLOT.to_owned(),
        publication: "pub".to_owned(),
        publication_oid: Some(7),
        system_identifier: "730".to_owned(),
        timeline,
        confirmed: Lsn(confirmed),
        term,
        baseline: None,
    }
}

fn slot(confirmed: Option<u64>) -> SlotState {
    SlotState {
        name: SLOT.to_owned(),
        plugin: Some("pgoutput".to_owned()),
        database: Some("shop".to_owned()),
        active_pid: None,
        confirmed: confirmed.map(Lsn),
        lost: None,
        failover: None,
    }
}

fn system(timeline: i32, flushed: u64) -> SystemIdentity {
    SystemIdentity { system_identifier: "730".to_owned(), timeline, flushed: Lsn(flushed) }
}

fn seen(timeline: i32, term: i64, saved: u64, delivered: u64) -> Seen {
    Seen { system: "730".to_owned(), timeline, term, saved: Lsn(saved), delivered: Lsn(delivered) }
}

/// The verdict on a server that stands at 1000.
fn verdict(
    stored: &Installation,
    seen: Option<&Seen>,
    slot: Option<&SlotState>,
    timeline: i32,
    ends: &[(i32, Lsn)],
) -> Option<String> {
    let system = system(timeline, 1000);
    gap(stored, seen, &Found { slot, system: &system, publication: Some(7), named: "pub", ends })
}

#[test]
fn c058_what_goes_on_and_what_does_not() {
    let at = |slot: Option<SlotState>| verdict(&stored(1, 3, 500), None, slot.as_ref(), 1, &[]);
    assert_eq!(at(Some(slot(Some(500)))), None);
    assert_eq!(at(Some(slot(Some(400)))), None, "saved before it is confirmed");
    assert!(at(Some(slot(Some(501)))).unwrap().contains("ahead of the 0/1F4"));
    assert!(at(Some(slot(None))).unwrap().contains("not finished"));
    assert!(at(None).unwrap().contains("is gone"));
    let lost = SlotState { lost: Some("idle_timeout".to_owned()), ..slot(Some(500)) };
    assert!(at(Some(lost)).unwrap().contains("given the slot shop up: idle_timeout"));
    assert_eq!(verdict(&stored(1, 1, 0), None, None, 1, &[]), None, "nothing was ever confirmed");
}

#[test]
fn c060_a_restored_backup_is_told_by_what_was_seen_before() {
    let slot = slot(Some(500));
    let at = |stored: &Installation, seen: &Seen, timeline| {
        verdict(stored, Some(seen), Some(&slot), timeline, &[])
    };
    assert_eq!(at(&stored(1, 3, 500), &seen(1, 3, 500, 900), 1), None, "as it was left");
    assert_eq!(at(&stored(1, 4, 500), &seen(1, 3, 900, 900), 1), None, "another host has led since");
    assert!(at(&stored(1, 3, 500), &seen(1, 3, 600, 900), 1).unwrap().contains("a backup was restored"));
    assert!(at(&stored(1, 2, 500), &seen(1, 3, 400, 900), 1).unwrap().contains("a backup was restored"));
    assert!(at(&stored(1, 4, 500), &seen(1, 3, 1001, 1001), 1).unwrap().contains("WAL ends at"));
    let future = stored(1, 3, 1001);
    assert!(verdict(&future, None, Some(&slot), 1, &[]).unwrap().contains("beyond the end"));
    let other = Installation { system_identifier: "731".to_owned(), ..stored(1, 3, 500) };
    assert!(verdict(&other, None, Some(&slot), 1, &[]).unwrap().contains("another cluster"));
    let elsewhere = Seen { system: "731".to_owned(), ..seen(1, 9, 999, 999) };
    assert_eq!(at(&stored(1, 3, 500), &elsewhere, 1), None, "what was seen of another cluster says nothing");
}

#[test]
fn c060_a_promoted_standby_goes_on_only_where_nothing_was_read_that_it_never_got() {
    let slot = slot(Some(500));
    let ends = [(1, Lsn(800))];
    let at = |seen: Option<Seen>, ends: &[(i32, Lsn)]| {
        verdict(&stored(1, 3, 500), seen.as_ref(), Some(&slot), 2, ends)
    };
    assert_eq!(at(Some(seen(1, 3, 500, 800)), &ends), None);
    assert_eq!(at(Some(seen(1, 3, 600, 800)), &ends), None, "its state may be a little older");
    let beyond = at(Some(seen(1, 3, 500, 801)), &ends).unwrap();
    assert!(
        beyond.starts_with("the server was promoted or restored (timeline 1 before, 2 now), and "),
        "{beyond}"
    );
    assert!(beyond.contains("beyond 0/320"), "{beyond}");
    assert!(
        at(Some(seen(1, 2, 500, 700)), &ends).unwrap().contains("nobody remembers"),
        "another host has led"
    );
    assert!(at(None, &ends).unwrap().contains("nobody remembers"));
    assert!(at(Some(seen(1, 3, 500, 700)), &[]).unwrap().contains("does not have timeline 1"));
    let gone = verdict(&stored(1, 3, 500), None, None, 2, &ends).unwrap();
    assert!(gone.contains("(timeline 1 before, 2 now), and the slot shop is gone"), "{gone}");
}

#[test]
fn c060_a_promoted_standby_may_have_the_slot_ahead_of_the_state_that_saved_it() {
    let at = |seen: Option<Seen>, confirmed: u64, timeline: i32| {
        let (stored, slot) = (stored(1, 3, 500), slot(Some(confirmed)));
        verdict(&stored, seen.as_ref(), Some(&slot), timeline, &[(1, Lsn(800))])
    };
    assert_eq!(at(Some(seen(1, 3, 600, 800)), 600, 2), None, "this process has confirmed it");
    let moved = at(Some(seen(1, 3, 600, 800)), 601, 2).unwrap();
    assert!(moved.contains("ahead of the 0/258"), "{moved}");
    assert!(at(Some(seen(1, 2, 600, 800)), 600, 2).unwrap().contains("somebody moved it"), "another term");
    assert!(at(None, 501, 2).unwrap().contains("somebody moved it"));
    assert!(at(Some(seen(1, 3, 600, 800)), 600, 1).is_some(), "where nothing was promoted, state is lost");
}

#[test]
fn c060_a_former_primary_is_told_from_the_one_that_was_promoted() {
    assert_eq!(is_behind(Some(&seen(2, 3, 500, 900)), &system(1, 1000)), Some(2));
    assert_eq!(is_behind(Some(&seen(2, 3, 500, 900)), &system(2, 1000)), None);
    assert_eq!(is_behind(Some(&seen(1, 3, 500, 900)), &system(2, 1000)), None);
    assert_eq!(is_behind(None, &system(1, 1000)), None);
    let other = SystemIdentity { system_identifier: "731".to_owned(), ..system(1, 1000) };
    assert_eq!(is_behind(Some(&seen(2, 3, 500, 900)), &other), None);
}

#[test]
fn what_is_remembered_outlives_a_term() {
    let memory = Memory::default();
    assert_eq!(memory.seen(), None);
    memory.begins(&stored(1, 3, 500), Lsn(550));
    assert_eq!(memory.seen(), Some(seen(1, 3, 500, 550)), "whoever led before");
    memory.saved(Lsn(600));
    memory.delivered(Lsn(700));
    memory.delivered(Lsn(650));
    assert_eq!(memory.seen(), Some(seen(1, 3, 600, 700)));
    memory.begins(&stored(2, 4, 500), Lsn(400));
    assert_eq!(memory.seen(), Some(seen(2, 4, 500, 500)), "what was built on is what counts from here on");
}
