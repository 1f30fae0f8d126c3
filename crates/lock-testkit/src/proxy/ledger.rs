//! Matches replies with requests.

use std::collections::VecDeque;

use super::Then;
use super::frames::{Reply, Request};

/// The open requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    open: VecDeque<(Request, Option<Swallow>)>,
    subscribed: bool,
}

/// What happens to a message of the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReplyFate {
    Forward { push: bool },
    Swallow(Swallow),
}

/// What happens besides to a connection whose reply is swallowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Swallow {
    /// Nothing: the server was asked twice.
    Alone,
    Then(Then),
}

impl Ledger {
    /// Adds a request that is sent to the server, and what happens to its reply.
    pub(super) fn sent(&mut self, request: Request, swallow: Option<Swallow>) {
        if request == Request::Other {
            return;
        }
        self.subscribed |= request == Request::Subscription;
        self.open.push_back((request, swallow));
    }

    /// Finds the request that a message of the server answers.
    pub(super) fn received(&mut self, reply: Reply) -> ReplyFate {
        let answered = match reply {
            Reply::Other => None,
            Reply::Numbered(xid) => {
                self.open.iter().position(|&(request, _)| request == Request::Numbered(xid))
            }
            Reply::Pubsub { .. } if !self.subscribed => self.oldest(),
            Reply::Push { confirmation: true } | Reply::Pubsub { confirmation: true } => {
                // A subscription to several channels has several confirmations: the first one is its reply.
                self.oldest().filter(|&oldest| self.open[oldest].0 == Request::Subscription)
            }
            Reply::Push { .. } | Reply::Pubsub { .. } => return ReplyFate::Forward { push: true },
            Reply::InTurn => self.oldest(),
        };
        match answered.and_then(|index| self.open.remove(index)) {
            Some((_, Some(swallow))) => ReplyFate::Swallow(swallow),
            Some((_, None)) | None => ReplyFate::Forward { push: false },
        }
    }

    fn oldest(&self) -> Option<usize> {
        (!self.open.is_empty()).then_some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: ReplyFate = ReplyFate::Forward { push: false };
    const PUSH: ReplyFate = ReplyFate::Forward { push: true };
    const GONE: ReplyFate = ReplyFate::Swallow(HANG);
    const HANG: Swallow = Swallow::Then(Then::Hang);

    #[test]
    fn replies_come_in_turn_past_pushes() {
        let mut ledger = Ledger::default();
        ledger.sent(Request::InTurn, None);
        ledger.sent(Request::InTurn, Some(HANG));
        assert_eq!(ledger.received(Reply::Push { confirmation: false }), PUSH);
        assert_eq!(ledger.received(Reply::InTurn), ANSWER);
        assert_eq!(ledger.received(Reply::Push { confirmation: false }), PUSH);
        assert_eq!(ledger.received(Reply::InTurn), GONE);
    }

    #[test]
    fn numbered_replies_are_found_by_number() {
        let mut ledger = Ledger::default();
        ledger.sent(Request::Numbered(1), None);
        ledger.sent(Request::Numbered(2), Some(HANG));
        assert_eq!(ledger.received(Reply::Numbered(2)), GONE);
        assert_eq!(ledger.received(Reply::Numbered(1)), ANSWER);
    }

    #[test]
    fn a_subscription_is_answered_by_its_first_confirmation() {
        for confirmation in [Reply::Push { confirmation: true }, Reply::Pubsub { confirmation: true }] {
            let mut ledger = Ledger::default();
            ledger.sent(Request::Subscription, None);
            ledger.sent(Request::InTurn, Some(HANG));
            assert_eq!(ledger.received(confirmation), ANSWER);
            assert_eq!(ledger.received(confirmation), ANSWER);
            assert_eq!(ledger.received(Reply::Pubsub { confirmation: false }), PUSH);
            assert_eq!(ledger.received(Reply::InTurn), GONE);
        }
    }

    #[test]
    fn an_array_is_a_message_only_after_a_subscription() {
        let mut ledger = Ledger::default();
        ledger.sent(Request::InTurn, Some(HANG));
        assert_eq!(ledger.received(Reply::Pubsub { confirmation: false }), GONE);
    }
}
