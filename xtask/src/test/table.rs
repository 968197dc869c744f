//! The table at the end of a run: where the minutes went, what ran, and what could not.

use std::collections::BTreeMap;
use std::time::Duration;

use super::run::Done;

/// Prints the table. Its last line is `N passed, N failed, N skipped`.
pub(crate) fn print(done: &[Done], not_run: &[&str], took: Duration) {
    print!("{}", text(done, not_run, took));
}

fn text(done: &[Done], not_run: &[&str], took: Duration) -> String {
    let mut out = format!(
        "\n{:<42} {:>11} {:>10} {:>7} {:>7} {:>8}\n",
        "step", "building, s", "running, s", "passed", "failed", "skipped"
    );
    let row = |name: &str, times: [Duration; 2], counts: [u64; 3]| {
        let [building, running] = times.map(|time| format!("{:.1}", time.as_secs_f64()));
        let [passed, failed, skipped] = counts;
        format!("{name:<42} {building:>11} {running:>10} {passed:>7} {failed:>7} {skipped:>8}\n")
    };
    let (mut times, mut counts) = ([Duration::ZERO; 2], [0; 3]);
    for one in done {
        let (passed, failed) = one.counts();
        let of_one = [passed, failed, one.skips.len() as u64];
        out += &row(&one.name, [one.building, one.running], of_one);
        times = [times[0] + one.building, times[1] + one.running];
        counts = std::array::from_fn(|at| counts[at] + of_one[at]);
    }
    for name in not_run {
        out += &format!("{name:<42} not run\n");
    }
    out += &row("all", times, counts);
    out += &format!("{:.0} s in all\n", took.as_secs_f64());
    out += &skipped(done);
    for one in done.iter().filter(|one| !one.ok) {
        out += &format!("\nthe end of what `{}` printed:\n", one.name);
        one.last.iter().for_each(|line| out += &format!("    {line}\n"));
    }
    let [passed, failed, skipped] = counts;
    out + &format!("{passed} passed, {failed} failed, {skipped} skipped\n")
}

/// What could not run, by reason.
fn skipped(done: &[Done]) -> String {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for skip in done.iter().flat_map(|one| &one.skips) {
        reasons.entry((&skip.need, &skip.reason)).or_default().push(&skip.test);
    }
    let mut out = String::new();
    for ((need, reason), tests) in reasons {
        out += &format!("\nskipped, {}, for want of {need} ({reason}):\n", tests.len());
        tests.iter().for_each(|test| out += &format!("    {test}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::run::Tests;
    use super::super::skip::Skip;
    use super::*;

    #[test]
    fn the_table_says_where_the_time_went_and_what_was_skipped() {
        let mut tests = Done::new("tests");
        tests.building = Duration::from_millis(61_400);
        tests.running = Duration::from_secs(100);
        tests.tests = Tests { passed: 10, ..Tests::default() };
        let skip = |test: &str| Skip {
            test: test.to_owned(),
            need: "loop".to_owned(),
            reason: "no device".to_owned(),
        };
        tests.skips = vec![skip("a"), skip("b")];
        let text = text(&[Done::new("tidy"), tests], &["model"], Duration::from_secs(170));
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a row");
            line[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("tests"), ["61.4", "100.0", "8", "0", "2"]);
        assert_eq!(row("all"), ["61.4", "100.0", "9", "0", "2"]);
        assert_eq!(row("model"), ["not", "run"]);
        assert!(text.contains("skipped, 2, for want of loop (no device):\n    a\n    b\n"));
        assert!(text.ends_with("\n9 passed, 0 failed, 2 skipped\n"));
    }
}
