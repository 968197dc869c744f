//! Objects that are truncated while a commit reads them.

use super::*;

/// Cuts what it is asked for, as if by another thread, this often.
struct Cutting<'a> {
    log: &'a IntentLog,
    left: Cell<u32>,
}

impl Fetch for Cutting<'_> {
    fn run_between_transactions(&self, f: &mut dyn FnMut()) -> Result<()> {
        f();
        Ok(())
    }

    fn content(&self, dataset: u64, object: u64, _: u64, out: &mut [u8]) -> Result<()> {
        if let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            self.log.append(2, dataset, object, Change::Truncate { size: 3 });
        }
        out.fill(7);
        Ok(())
    }
}

#[test]
fn what_is_cut_while_it_is_fetched_is_fetched_again() {
    let storage = memory();
    let log = create(&storage, &extents());
    let root = sync(&log, 1);
    let write = || log.append(2, DATASET, 5, Change::Write { offset: 0, len: 10 });
    write();
    let commit = |left| {
        let cutting = Cutting { log: &log, left: Cell::new(left) };
        log.commit(Some((DATASET, 5)), &cutting)
    };
    assert_eq!(commit(1), Committed::Durable);
    assert_eq!(log.counters().total(LogCounters::REFETCHED), 1);
    let texts = || -> Vec<String> {
        replay_all(&open(&storage, &root), &root).into_iter().map(|seen| seen.text).collect()
    };
    assert_eq!(texts(), ["write 0+10 7", "Truncate { size: 3 }"]);
    // Not for ever; what was taken is the txg's then.
    write();
    assert_eq!(commit(1000), Committed::WaitForTxg);
    assert_eq!(commit(0), Committed::WaitForTxg);
    assert_eq!(texts().len(), 2);
    sync(&log, 2);
    log.append(3, DATASET, 5, Change::Write { offset: 0, len: 10 });
    assert_eq!(commit(0), Committed::Durable);
}

/// Cuts the content whenever it is asked for, and makes changes in the next txg the last time.
struct CuttingToTheEnd<'a> {
    cutting: Cutting<'a>,
    last: &'a [Change<'a>],
}

impl Fetch for CuttingToTheEnd<'_> {
    fn run_between_transactions(&self, f: &mut dyn FnMut()) -> Result<()> {
        f();
        Ok(())
    }

    fn content(&self, dataset: u64, object: u64, offset: u64, out: &mut [u8]) -> Result<()> {
        self.cutting.content(dataset, object, offset, out)?;
        if self.cutting.left.get() == 0 {
            self.last.iter().for_each(|change| self.cutting.log.append(3, DATASET, 6, *change));
        }
        Ok(())
    }
}

/// The last attempt takes changes of a newer txg than all before it, and they are not written.
#[test]
fn what_the_last_attempt_of_a_commit_took_is_lost_until_its_txg_is_durable() {
    let create_6 = Change::Create { kind: ObjectKind::Data, record_shift: 17, attributes: b"a" };
    let insert = Change::ZapInsert { name: b"n", value: b"v" };
    let write = Change::Write { offset: 0, len: 10 };
    let cases = [
        (&[create_6, insert][..], true),
        (&[write, Change::Bind][..], true),
        // Nothing else is to be written.
        (&[insert][..], false),
    ];
    for (last, more) in cases {
        let storage = memory();
        let log = create(&storage, &extents());
        sync(&log, 1);
        log.append(2, DATASET, 5, write);
        // As many cuts as attempts.
        let cutting = Cutting { log: &log, left: Cell::new(4) };
        let fetch = CuttingToTheEnd { cutting, last };
        assert_eq!(log.commit(Some((DATASET, 5)), &fetch), Committed::WaitForTxg);
        assert_eq!(log.counters().total(LogCounters::REFETCHED), 4);
        sync(&log, 2);
        if more {
            log.append(3, DATASET, 5, write);
        }
        for object in [5, 6] {
            let outcome = log.commit(Some((DATASET, object)), &Zeros);
            assert_eq!(outcome, Committed::WaitForTxg, "object {object} after {last:?}");
        }
        let root = sync(&log, 3);
        log.append(4, DATASET, 6, insert);
        assert_eq!(log.commit(Some((DATASET, 6)), &Zeros), Committed::Durable);
        assert_eq!(replay_all(&open(&storage, &root), &root).len(), 1);
    }
}
