use crate::{
    model::Lsn,
    runtime::survey::{MappingView, Told},
};

use super::*;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn streaming(now: Duration) -> State {
    let mut state = State::default();
    state.term_begins(Duration::ZERO);
    state.has_lock(now);
    state.pumps(true, now);
    state
}

fn mapping(name: &str, state: MappingState) -> MappingView {
    let error = Told { class: None, code: "http-500".to_owned(), message: "no".to_owned() };
    MappingView {
        name: name.to_owned(),
        entity: "public.t".to_owned(),
        sink: "out".to_owned(),
        state,
        generation: 1,
        built: 1,
        attempts: 2,
        error: (state != MappingState::Running).then_some(error),
        held: None,
        queued_bytes: 0,
        quarantined: 0,
    }
}

#[test]
fn c098_who_is_suspended_is_ready_and_says_so() {
    let mut state = State::default();
    state.term_begins(at(1));
    state.is_suspended(at(2));
    assert!(state.ready(at(3)).unwrap().starts_with("suspended"));
    assert_eq!(state.level(at(3)), (Level::Degraded, vec!["the installation is suspended".to_owned()]));
}

#[test]
fn c098_a_life_in_verdicts() {
    let mut state = State::default();
    assert_eq!(state.ready(at(0)), Err("starting".to_owned()));
    assert_eq!(state.level(at(0)).0, Level::Down);
    state.term_begins(at(1));
    state.stands_by(at(2));
    assert_eq!(state.ready(at(3)), Ok("stands by: another host leads"));
    assert_eq!(state.level(at(3)), (Level::Ok, Vec::new()));
    state.has_lock(at(4));
    assert!(state.ready(at(4)).unwrap_err().contains("does not stream yet"));
    state.pumps(true, at(5));
    assert_eq!((state.ready(at(6)), state.since), (Ok("leads and streams"), at(4)));

    state.term_ended(Some(("it broke\n  badly\n".to_owned(), at(3))), at(10));
    let why = state.ready(at(11)).unwrap_err();
    assert_eq!(why, "the term ended: it broke; badly; next attempt in 2.0 s");
    assert_eq!((state.live(at(11)), state.leads, state.role), (Ok(()), false, Role::BetweenTerms));
    state.term_begins(at(13));
    assert_eq!(state.ready(at(14)).unwrap_err(), "the term ended: it broke; badly; a new term begins");
    state.has_lock(at(15));
    state.pumps(true, at(15));
    assert!(state.ready(at(16)).is_ok());

    state.stops(at(20));
    assert_eq!(state.ready(at(20)).unwrap_err(), "stopping");
    state.pumps(false, at(21));
    state.term_ended(None, at(21));
    assert_eq!((state.role, state.live(at(21))), (Role::Stopping, Ok(())), "and nothing else any more");
}

#[test]
fn c098_a_loop_that_stands_still_is_not_alive() {
    let mut state = streaming(at(5));
    state.beats(true, at(6));
    // The supervisor goes round, but it is the pump's turn.
    state.beats(false, at(30));
    assert_eq!(state.live(at(36)), Ok(()));
    let why = state.live(at(37)).unwrap_err();
    assert_eq!(why, "the loop of the stream has not come round for 31 s (the limit is 30 s)");
    assert_eq!(state.ready(at(37)).unwrap_err(), why, "nor is it ready");
    assert_eq!(state.level(at(37)), (Level::Down, vec![why]));
    state.beats(true, at(38));
    assert!(state.ready(at(38)).is_ok());

    state.pumps(false, at(40));
    state.beats(true, at(60));
    assert!(state.live(at(71)).unwrap_err().contains("supervisor"));
    state.beats(false, at(71));
    assert_eq!(state.live(at(71)), Ok(()));
}

#[test]
fn what_fails_makes_it_degraded_and_is_named() {
    for bad in [MappingState::Failing, MappingState::LetGo, MappingState::Held, MappingState::Refused] {
        let mut state = streaming(at(1));
        let mappings = vec![mapping("good", MappingState::Running), mapping("bad", bad)];
        state.survey = Some(Arc::new(Survey { mappings, ..Survey::default() }));
        let (level, reasons) = state.level(at(2));
        assert_eq!((level, reasons), (Level::Degraded, vec![format!("mapping bad is {}", bad.as_str())]));
        assert!(state.ready(at(2)).is_ok(), "it goes on for the others");
    }
    let mut state = streaming(at(1));
    let mappings = vec![mapping("good", MappingState::Running)];
    state.survey = Some(Arc::new(Survey { mappings, ..Survey::default() }));
    assert_eq!(state.level(at(2)), (Level::Ok, Vec::new()));
}

#[test]
fn c100_a_slot_that_keeps_too_much_makes_it_degraded() {
    let slot = |retained, status: &str, limit| SlotWal {
        retained,
        status: Some(status.to_owned()),
        limit,
        ..SlotWal::default()
    };
    let level = |slot| {
        let mut state = streaming(at(1));
        state.slot = Some((slot, at(1)));
        state.level(at(2)).0
    };
    assert_eq!(level(slot(u64::MAX, "extended", None)), Level::Ok, "no limit");
    assert_eq!(level(slot(49, "reserved", Some(100))), Level::Ok);
    assert_eq!(level(slot(50, "reserved", Some(100))), Level::Degraded);
    assert_eq!(level(slot(0, "lost", None)), Level::Degraded);
}

#[test]
fn c057_the_lag_is_measured_against_the_server() {
    let mut state = streaming(at(1));
    assert_eq!(state.lag_bytes(), None);
    let survey = Survey { confirmed: Lsn(100), wal_end: Lsn(90), ..Survey::default() };
    state.survey = Some(Arc::new(survey));
    assert_eq!(state.lag_bytes(), Some(0));
    state.slot = Some((SlotWal { end: Lsn(1100), ..SlotWal::default() }, at(1)));
    assert_eq!(state.lag_bytes(), Some(1000), "though the stream says nothing");
}
