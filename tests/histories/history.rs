//! A history: a random mutation, and a random course of the world around it.

/// What is drawn, and made smaller when it breaks a rule.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) kind: Kind,
    pub(crate) late: bool,
    /// Whether the policy names the steps.
    pub(crate) named: bool,
    /// What the mutation does; the place in this list is the kind of the effect.
    pub(crate) acts: Vec<Act>,
    /// Whether the first two overlap.
    pub(crate) together: bool,
    pub(crate) tail: Tail,
    pub(crate) troubles: Vec<Trouble>,
    /// What the second version of the code does otherwise.
    pub(crate) change: Change,
    pub(crate) course: Vec<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Transactional,
    Hold,
    Resume,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Rows: a local step, or part of the transaction.
    Local,
    Remote,
    RemoteWithLookup,
    /// A call outside any step, which the other system can't tell from a new one.
    Plain,
}

/// How the resolver ends where nothing goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    Value,
    /// A second item of the list is an error that looks like a rejection, or is marked.
    Item(Refusal),
    /// A field below is an error, and its object null.
    Below,
    /// A field below is an error that an `Option` swallows.
    Swallowed,
    /// An error added beside the value.
    Beside,
    /// Errors as data, at first: nothing happened.
    Undone,
    /// A value of which the resolver says that it does not know, at first.
    Doubt,
    /// A value that is marked as final.
    Final,
}

/// An error that says that nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Code,
    Mark,
}

/// Something that goes wrong in one run of the resolver, before the act with this number, or at the act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) run: u32,
    pub(crate) at: usize,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The resolver rests until it is told to go on.
    Pause,
    /// It asks for its request id.
    AskId,
    /// An error without a mark.
    Error,
    Final,
    Unknown,
    Refusal(Refusal),
    /// An error before anything else, from a guard, say.
    Door(Refusal),
    Panic,
    /// The gateway refuses, and the resolver knows what that means.
    Refused,
    /// The call never arrives, or its answer does not; the resolver does not know.
    CallLost,
    AnswerLost,
    /// The call arrives later.
    Delayed,
}

/// A second version of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// A step has another name.
    Renamed(usize),
    Reversed,
    Removed(usize),
    Added(Act),
    /// From a transactional policy to a leased one, or back.
    Switched,
}

/// What happens in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Send {
        client: usize,
        keys: Keys,
        other: bool,
        process: usize,
        copies: usize,
    },
    /// Clients hang up whose resolvers rest.
    HangUp,
    /// A call of the store fails, from now on.
    Arm {
        process: usize,
        nth: usize,
        fault: Fault,
    },
    Kill(usize),
    Stop(usize),
    Continue(usize),
    /// What rests goes on.
    Go,
    /// All leases lapse.
    Lapse,
    Sweep {
        process: usize,
        oracle: Oracle,
    },
    /// An operator takes a key, or settles it truthfully.
    Take {
        process: usize,
        client: usize,
        key: usize,
    },
    Settle {
        process: usize,
        client: usize,
        key: usize,
    },
    /// Delayed calls arrive at the gateway.
    Arrive,
    /// The process gets the other version of the code.
    Deploy(usize),
    /// The process's connections to the database break.
    Cut(usize),
    /// Nobody comes at the records for a time.
    Lock,
    /// The process's server takes no writes any more, or again.
    Demote(usize),
    Promote(usize),
}

/// The keys of a document, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    First,
    Second,
    Both,
    Swapped,
    /// One key under two aliases.
    Twice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails without its effect, and says so.
    Undone,
    /// It fails without its effect, or with it, and does not know.
    LostBefore,
    LostAfter,
    /// The process dies.
    DieBefore,
    DieAfter,
    /// The process stops.
    StopBefore,
    StopAfter,
}

/// What a reconciler says of a lost attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oracle {
    Honest,
    /// Honest, and where nothing happened it says failed.
    HonestFailed,
    /// Says that nothing happened, although a call may be on its way.
    Late,
    Silent,
    Panics,
}

pub(crate) const PROCESSES: usize = 2;

impl History {
    /// The same, without what no application may do: a resolver that says "nothing happened" after a call that nobody
    /// can take back, or one that is resumed and has effects outside its steps.
    pub(crate) fn sane(mut self) -> Self {
        // All effects are in steps, or none is.
        let is_plain = self.acts.first() == Some(&Act::Plain) && self.kind != Kind::Resume;
        match self.kind {
            Kind::Transactional => self.acts.fill(Act::Local),
            _ if is_plain => self.acts.fill(Act::Plain),
            Kind::Hold | Kind::Resume | Kind::Release => {
                for act in &mut self.acts {
                    if *act == Act::Plain {
                        *act = Act::Local;
                    }
                }
            }
        }
        if self.kind == Kind::Resume && self.acts.is_empty() {
            self.acts.push(Act::Local);
        }
        if let Change::Added(act) = &mut self.change
            && (is_plain || *act == Act::Plain)
        {
            *act = if is_plain { Act::Plain } else { Act::Local };
        }
        let is_local = self.acts.iter().all(|act| *act == Act::Local);
        match self.change {
            Change::Switched if !is_local || !matches!(self.kind, Kind::Transactional | Kind::Hold) => {
                self.change = Change::None;
            }
            Change::Added(_) if self.kind == Kind::Transactional => self.change = Change::Added(Act::Local),
            _ => {}
        }
        if self.is_plain() {
            for trouble in &mut self.troubles {
                if matches!(trouble.what, What::Refusal(_)) {
                    trouble.what = What::Error;
                }
            }
        }
        // "Nothing happened" is true of both versions only if neither has an effect, or both are undone as a whole.
        let has_effect = !self.acts.is_empty() || matches!(self.change, Change::Added(_));
        let is_undone = self.kind == Kind::Transactional && self.change != Change::Switched;
        if self.tail == Tail::Undone && has_effect && !is_undone {
            self.tail = Tail::Value;
        }
        self
    }

    /// Whether it has an effect that no step protects.
    pub(crate) fn is_plain(&self) -> bool {
        self.acts.contains(&Act::Plain)
    }

    /// The policy's kind, and the acts in their order with their kinds and names, of a version of the code.
    pub(crate) fn version(&self, second: bool) -> (Kind, Vec<(usize, Act, String)>) {
        let acts = self.acts.iter().enumerate();
        let mut acts: Vec<_> = acts.map(|(kind, act)| (kind, *act, format!("step {kind}"))).collect();
        if !second {
            return (self.kind, acts);
        }
        let mut kind = self.kind;
        match self.change {
            Change::None => {}
            Change::Renamed(at) => {
                if let Some((_, _, name)) = acts.get_mut(at) {
                    name.push_str(", renamed");
                }
            }
            Change::Reversed => acts.reverse(),
            Change::Removed(at) => {
                if at < acts.len() {
                    acts.remove(at);
                }
            }
            Change::Added(act) => acts.push((acts.len(), act, "step that is new".to_owned())),
            Change::Switched => {
                kind = if kind == Kind::Transactional { Kind::Hold } else { Kind::Transactional };
            }
        }
        (kind, acts)
    }

    /// What goes wrong at a place of a run.
    pub(crate) fn troubles(&self, run: u32, at: usize) -> impl Iterator<Item = What> {
        self.troubles.iter().filter(move |trouble| trouble.run == run && trouble.at == at).map(|trouble| trouble.what)
    }

    pub(crate) fn door(&self, run: u32) -> Option<Refusal> {
        self.troubles.iter().find_map(|trouble| match trouble.what {
            What::Door(refusal) if trouble.run == run => Some(refusal),
            _ => None,
        })
    }
}
