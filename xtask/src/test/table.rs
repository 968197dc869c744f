//! The table at the end of a run: times, counts of tests, and skipped tests.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use super::report::StepReport;

/// The unit of processor times in `/proc`, which is the same for all kernels of x86 and ARM.
const TICK: Duration = Duration::from_millis(10);

/// The processor time of all processes that this one, or they, have started and awaited. Daemons
/// are not among them. `None` if the kernel does not tell.
pub(crate) fn processor_time() -> Option<Duration> {
    ticks_of_children(&fs::read_to_string("/proc/self/stat").ok()?).map(|ticks| ticks * TICK)
}

/// The sum of the fields `cutime` and `cstime`, see proc_pid_stat(5). The name of the program, in
/// parentheses, can have spaces.
fn ticks_of_children(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(13);
    let mut field = || fields.next()?.parse::<u32>().ok();
    Some(field()? + field()?)
}

/// Prints the table. Its last line is `N passed, N failed, N skipped`.
pub(crate) fn print(
    done: &[StepReport],
    not_run: &[&str],
    took: Duration,
    processor: Option<Duration>,
) {
    print!("{}", text(done, not_run, took, processor));
}

fn text(
    done: &[StepReport],
    not_run: &[&str],
    took: Duration,
    processor: Option<Duration>,
) -> String {
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
    out += &format!("{:.0} s in all", took.as_secs_f64());
    if let Some(processor) = processor {
        out += &format!(", {:.0} s of processor time", processor.as_secs_f64());
    }
    out.push('\n');
    out += &skipped(done);
    for one in done.iter().filter(|one| !one.ok) {
        out += &format!("\nlast lines of `{}`:\n", one.name);
        one.last.iter().for_each(|line| out += &format!("    {line}\n"));
    }
    let [passed, failed, skipped] = counts;
    out + &format!("{passed} passed, {failed} failed, {skipped} skipped\n")
}

/// The skipped tests, grouped by need and reason.
fn skipped(done: &[StepReport]) -> String {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for skip in done.iter().flat_map(|one| &one.skips) {
        reasons.entry((&skip.need, &skip.reason)).or_default().push(&skip.test);
    }
    let mut out = String::new();
    for ((need, reason), tests) in reasons {
        out += &format!("\n{} skipped, without {need} ({reason}):\n", tests.len());
        tests.iter().for_each(|test| out += &format!("    {test}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::report::Tests;
    use super::super::skip::Skip;
    use super::*;

    #[test]
    fn the_table_has_times_counts_and_skips() {
        let mut tests = StepReport::new("tests");
        tests.building = Duration::from_millis(61_400);
        tests.running = Duration::from_secs(100);
        tests.tests = Tests { passed: 10, ..Tests::default() };
        let skip = |test: &str| Skip {
            test: test.to_owned(),
            need: "loop".to_owned(),
            reason: "no device".to_owned(),
        };
        tests.skips = vec![skip("a"), skip("b")];
        let done = [StepReport::new("tidy"), tests];
        let (took, processor) = (Duration::from_secs(170), Some(Duration::from_secs(300)));
        let text = text(&done, &["model"], took, processor);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a row");
            line[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("tests"), ["61.4", "100.0", "8", "0", "2"]);
        assert_eq!(row("all"), ["61.4", "100.0", "9", "0", "2"]);
        assert_eq!(row("model"), ["not", "run"]);
        assert!(text.contains("\n170 s in all, 300 s of processor time\n"));
        assert!(text.contains("2 skipped, without loop (no device):\n    a\n    b\n"));
        assert!(text.ends_with("\n9 passed, 0 failed, 2 skipped\n"));
    }

    #[test]
    fn the_processor_time_is_that_of_children() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 130 40 20 0 1 0";
        assert_eq!(ticks_of_children(stat), Some(170));
        assert_eq!(ticks_of_children("7 (cut"), None);
        assert!(processor_time().is_some());
    }
}
