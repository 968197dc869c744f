//! Whether a root is part of the history of another one.
//!
//! What somebody keeps of what he has read, such as a cache on a disk, is right as long as the
//! store has one history. It gets a second one if a bucket is set back to a copy of before and is
//! written again: then addresses, and numbers of roots, come a second time. So a keeper notes a
//! *mark*: the session of the owner, and the nonce of the newest root that he has read of. Later he
//! asks whether that root is an ancestor of the newest one:
//!
//! * In one session, all roots follow each other: an owner whose `super` was replaced is fenced.
//!   If the store was set back within the session, the newest root is older than what he has.
//! * The chain of the newest root names roots before it, back to its checkpoint.
//!
//! Otherwise nobody knows, and what he has is to be thrown away.

use crate::format::root::{Chain, Link, Super};

/// The mark of what `content` says: the session, and the nonce of the root, 32 bits of each. It is
/// never 0.
pub(crate) fn mark(content: &Super) -> u64 {
    let (session, root) = (content.session as u32, content.root.nonce as u32);
    (u64::from(session) << 32 | u64::from(root)).max(1)
}

/// Whether the root of `mark` is known to be one of those that led to what `content` says, with the
/// chain of its root. `false` for the mark 0, which nobody has noted.
pub(crate) fn is_ancestor(mark: u64, content: &Super, chain: &Chain) -> bool {
    let (session, root) = ((mark >> 32) as u32, mark as u32);
    let nonces = chain.links.iter().filter_map(|link| match link {
        Link::Root(id) => Some(id.nonce),
        Link::Logs { .. } => None,
    });
    let mut nonces = nonces.chain((chain.parts > 0).then_some(chain.checkpoint.nonce));
    mark != 0 && (session == content.session as u32 || nonces.any(|nonce| nonce as u32 == root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::envelope::Identity;

    fn root(number: u64) -> Identity {
        let nonce = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        Identity { epoch: 1, number, nonce }
    }

    fn content(session: u128, newest: u64) -> Super {
        let (store_guid, epoch, owner) = (7, 1, String::new());
        Super { store_guid, epoch, session, root: root(newest), closed: false, owner }
    }

    #[test]
    fn roots_of_the_session_and_of_the_chain_are_ancestors() {
        let links = vec![
            Link::Root(root(11)),
            Link::Logs { epoch: 1, start: 0, end: 2 },
            Link::Root(root(12)),
        ];
        let chain = Chain { checkpoint: root(10), parts: 1, links, ..Chain::default() };
        let now = content(5, 12);
        let is_one = |session, number| is_ancestor(mark(&content(session, number)), &now, &chain);
        assert!(is_one(5, 3), "of before the checkpoint, by the same owner");
        assert!(is_one(4, 10) && is_one(4, 11) && is_one(4, 12));
        assert!(!is_one(4, 9), "nobody knows");
        assert!(!is_one(4, 13), "of a history that was given up");
        let unnamed = Chain { parts: 0, ..chain };
        assert!(!is_ancestor(mark(&content(4, 10)), &now, &unnamed));
        assert!(!is_ancestor(0, &content(0, 12), &unnamed));
    }
}
