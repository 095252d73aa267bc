//! How histories are drawn.

use proptest::{collection::vec, prelude::*, sample::select};

use crate::history::{Act, Change, Event, Fault, History, Keys, Kind, Oracle, PROCESSES, Refusal, Tail, Trouble, What};

pub(crate) fn histories() -> impl Strategy<Value = History> {
    let kind = select(vec![Kind::Transactional, Kind::Hold, Kind::Resume, Kind::Resume, Kind::Release]);
    let parts = (
        (kind, prop::bool::weighted(0.25), any::<bool>()),
        vec(acts(), 0..4),
        any::<bool>(),
        tails(),
        vec(troubles(), 0..5),
        changes(),
        vec(prop_oneof![12 => events().prop_map(|event| vec![event]), 1 => lost()], 1..12),
        prop::option::weighted(0.15, (0..8_usize, select(vec![Fault::StopBefore, Fault::StopAfter]), 0..4_usize)),
    );
    parts.prop_map(|((kind, late, named), acts, together, tail, troubles, change, course, duel)| {
        let course = course.concat();
        let history = History { kind, late, named, acts, together, tail, troubles, change, course };
        match duel {
            Some((nth, fault, at)) => duelling(history, nth, fault, at).sane(),
            None => history.sane(),
        }
    })
}

/// First of all, a process stops in the middle, another one takes its key over and rests, and both go on.
fn duelling(mut history: History, nth: usize, fault: Fault, at: usize) -> History {
    history.kind = Kind::Resume;
    history.troubles.retain(|trouble| trouble.run > 1);
    history.troubles.push(Trouble { run: 1, at, what: What::Pause });
    let arm = Event::Arm { process: 0, nth, fault };
    let duel = [arm, SEND, Event::Lapse, SEND_ELSEWHERE, Event::Continue(0), Event::Go];
    history.course.splice(0..0, duel);
    history
}

const SEND: Event = Event::Send { client: 0, keys: Keys::First, other: false, process: 0, copies: 1 };
const SEND_ELSEWHERE: Event = Event::Send { client: 0, keys: Keys::First, other: false, process: 1, copies: 1 };

/// A process dies in the middle, and what comes after it has the other version of the code.
fn lost() -> impl Strategy<Value = Vec<Event>> {
    (0..8_usize, select(vec![Fault::DieBefore, Fault::DieAfter]), any::<bool>()).prop_map(|(nth, fault, sweeps)| {
        let then = if sweeps { Event::Sweep { process: 1, oracle: Oracle::Honest } } else { SEND_ELSEWHERE };
        vec![Event::Arm { process: 0, nth, fault }, SEND, Event::Deploy(0), Event::Deploy(1), Event::Lapse, then]
    })
}

fn acts() -> impl Strategy<Value = Act> {
    select(vec![Act::Local, Act::Local, Act::Remote, Act::Remote, Act::RemoteWithLookup, Act::Plain])
}

fn refusals() -> impl Strategy<Value = Refusal> {
    select(vec![Refusal::Code, Refusal::Mark])
}

fn tails() -> impl Strategy<Value = Tail> {
    prop_oneof![
        6 => Just(Tail::Value),
        2 => refusals().prop_map(Tail::Item),
        1 => Just(Tail::Below),
        1 => Just(Tail::Swallowed),
        1 => Just(Tail::Beside),
        1 => Just(Tail::Undone),
        1 => Just(Tail::Doubt),
        1 => Just(Tail::Final),
    ]
}

fn troubles() -> impl Strategy<Value = Trouble> {
    let what = prop_oneof![
        4 => Just(What::Pause),
        1 => Just(What::AskId),
        2 => Just(What::Error),
        1 => Just(What::Final),
        1 => Just(What::Unknown),
        2 => refusals().prop_map(What::Refusal),
        2 => refusals().prop_map(What::Door),
        2 => Just(What::Panic),
        1 => Just(What::Refused),
        1 => Just(What::CallLost),
        2 => Just(What::AnswerLost),
        2 => Just(What::Delayed),
    ];
    (0..3_u32, 0..4_usize, what).prop_map(|(run, at, what)| Trouble { run, at, what })
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => Just(Change::None),
        2 => (0..3_usize).prop_map(Change::Renamed),
        1 => Just(Change::Reversed),
        1 => (0..3_usize).prop_map(Change::Removed),
        1 => acts().prop_map(Change::Added),
        1 => Just(Change::Switched),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    let process = || 0..PROCESSES;
    let keys = prop_oneof![
        6 => Just(Keys::First),
        1 => Just(Keys::Second),
        2 => Just(Keys::Both),
        1 => Just(Keys::Swapped),
        1 => Just(Keys::Twice),
    ];
    let client = || prop_oneof![4 => Just(0_usize), 1 => Just(1_usize)];
    let send =
        (client(), keys, prop::bool::weighted(0.08), process(), prop_oneof![4 => Just(1_usize), 1 => 2..4_usize])
            .prop_map(|(client, keys, other, process, copies)| Event::Send { client, keys, other, process, copies });
    let fault = select(vec![
        Fault::Undone,
        Fault::LostBefore,
        Fault::LostAfter,
        Fault::DieBefore,
        Fault::DieAfter,
        Fault::StopBefore,
        Fault::StopAfter,
    ]);
    let oracle = prop_oneof![
        4 => Just(Oracle::Honest),
        1 => Just(Oracle::HonestFailed),
        2 => Just(Oracle::Late),
        1 => Just(Oracle::Silent),
        1 => Just(Oracle::Panics),
    ];
    prop_oneof![
        8 => send,
        1 => Just(Event::HangUp),
        4 => (process(), 0..8_usize, fault).prop_map(|(process, nth, fault)| Event::Arm { process, nth, fault }),
        1 => process().prop_map(Event::Kill),
        1 => process().prop_map(Event::Stop),
        1 => process().prop_map(Event::Continue),
        1 => Just(Event::Go),
        2 => Just(Event::Lapse),
        3 => (process(), oracle).prop_map(|(process, oracle)| Event::Sweep { process, oracle }),
        1 => (process(), client(), 0..2_usize).prop_map(|(process, client, key)| Event::Take { process, client, key }),
        1 => (process(), client(), 0..2_usize).prop_map(|(process, client, key)| Event::Settle { process, client, key }),
        1 => Just(Event::Arrive),
        1 => process().prop_map(Event::Deploy),
        1 => process().prop_map(Event::Cut),
        1 => Just(Event::Lock),
        1 => process().prop_map(Event::Demote),
        1 => process().prop_map(Event::Promote),
    ]
}
