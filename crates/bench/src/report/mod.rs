//! Results of benches, and their three forms: JSON lines, a table, a plot.
//!
//! A [`Record`] is one row: parameters that identify it, and measured figures. Repetitions are
//! folded into one record by medians. Ratios are added afterwards, between rows with the same
//! parameters.

mod json;
pub(crate) mod plot;
mod table;

pub(crate) use table::print_table;

/// A parameter's value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A name or a description.
    Text(String),
    /// A count.
    Integer(u64),
    /// Yes or no.
    Flag(bool),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Value::Integer(count)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

/// A row of a bench's results.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Parameters; `bench`, `subject` and `threads` come first.
    pub(crate) params: Vec<(&'static str, Value)>,
    /// Figures in base units.
    pub(crate) figures: Vec<(&'static str, f64)>,
}

impl Record {
    /// A row of `bench` about `subject` at a number of threads.
    pub(crate) fn new(bench: &str, subject: &str, threads: usize) -> Self {
        let params = vec![
            ("bench", Value::from(bench)),
            ("subject", Value::from(subject)),
            ("threads", Value::from(threads as u64)),
        ];
        Self { params, figures: Vec::new() }
    }

    /// Adds a parameter.
    pub(crate) fn param(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.params.push((name, value.into()));
        self
    }

    /// Adds a figure.
    pub(crate) fn figure(mut self, name: &'static str, value: f64) -> Self {
        self.figures.push((name, value));
        self
    }

    /// A parameter by name.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.params.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// A figure by name.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }

    /// The subject's name.
    pub(crate) fn subject(&self) -> &str {
        match self.get("subject") {
            Some(Value::Text(name)) => name,
            _ => "",
        }
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> u64 {
        match self.get("threads") {
            Some(Value::Integer(threads)) => *threads,
            _ => 0,
        }
    }

    /// True if all parameters but those in `apart` are equal.
    fn same_but(&self, other: &Record, apart: &[&str]) -> bool {
        let rest = |r: &Record| -> Vec<(&'static str, Value)> {
            r.params.iter().filter(|(n, _)| !apart.contains(n)).cloned().collect()
        };
        rest(self) == rest(other)
    }
}

/// The median of `values`, with the mean of the middle two for an even number.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    if sorted.is_empty() {
        return 0.0;
    }
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Relative standard deviation of the sample; 0 for fewer than two values.
pub(crate) fn relative_deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    let deviation = (squares / (values.len() - 1) as f64).sqrt();
    if mean == 0.0 { 0.0 } else { deviation / mean }
}

/// Figures whose deviation is reported, and the name of that column.
const DEVIATIONS: [(&str, &str); 2] =
    [("ops_per_s", "ops_per_s_deviation"), ("iops", "iops_deviation")];

/// Folds repetitions: the median of each figure, and the deviation of throughputs.
pub(crate) fn fold(repetitions: &[Record]) -> Option<Record> {
    let first = repetitions.first()?;
    let mut folded = Record { params: first.params.clone(), figures: Vec::new() };
    for (name, _) in &first.figures {
        let values: Vec<f64> = repetitions.iter().filter_map(|r| r.number(name)).collect();
        folded.figures.push((name, median(&values)));
        if let Some((_, deviation)) = DEVIATIONS.iter().find(|(of, _)| of == name) {
            folded.figures.push((deviation, relative_deviation(&values)));
        }
    }
    folded.figures.push(("repetitions", repetitions.len() as f64));
    Some(folded)
}

/// The divisor of a ratio column.
pub(crate) enum Against<'a> {
    /// The row of this subject with otherwise equal parameters.
    Subject(&'a str),
    /// The best of these subjects' rows, by medians.
    Best(&'a [&'a str]),
    /// The same subject at this number of threads.
    Threads(u64),
}

/// A ratio column: `name` is a row's `figure` over that of its counterpart.
pub(crate) struct Ratio<'a> {
    /// Name of the column.
    pub(crate) name: &'static str,
    /// The dividend.
    pub(crate) figure: &'static str,
    /// The divisor.
    pub(crate) against: Against<'a>,
}

/// Folds several measurements and adds ratios to rows that have a counterpart. A ratio is the
/// median of the ratios of single repetitions, because changes of the machine's speed affect both
/// sides of each.
pub(crate) fn fold_all(found: &[Vec<Record>], ratios: &[Ratio<'_>]) -> Vec<Record> {
    let found: Vec<&Vec<Record>> = found.iter().filter(|r| !r.is_empty()).collect();
    let medians: Vec<Record> = found.iter().filter_map(|r| fold(r)).collect();
    let mut folded = medians.clone();
    for ratio in ratios {
        for (i, record) in folded.iter_mut().enumerate() {
            let Some(other) = counterpart(&medians, &medians[i], ratio) else { continue };
            let pairs = found[i].iter().zip(found[other]);
            let each: Vec<f64> = pairs
                .filter_map(|(own, other)| {
                    Some((own.number(ratio.figure)?, other.number(ratio.figure)?))
                })
                .filter(|(_, other)| *other > 0.0)
                .map(|(own, other)| own / other)
                .collect();
            if !each.is_empty() {
                record.figures.push((ratio.name, median(&each)));
            }
        }
    }
    folded
}

/// The row that `record` is compared with.
fn counterpart(rows: &[Record], record: &Record, ratio: &Ratio<'_>) -> Option<usize> {
    const CONFIGURATION: &str = "config";
    let fits = |r: &Record| match ratio.against {
        Against::Subject(subject) => {
            r.subject() == subject && record.same_but(r, &["subject", CONFIGURATION])
        }
        Against::Best(subjects) => {
            subjects.contains(&r.subject()) && record.same_but(r, &["subject", CONFIGURATION])
        }
        Against::Threads(threads) => {
            r.threads() == threads && record.same_but(r, &["threads", CONFIGURATION])
        }
    };
    let figure = |i: &usize| rows[*i].number(ratio.figure).unwrap_or(0.0);
    (0..rows.len()).filter(|i| fits(&rows[*i])).max_by(|a, b| figure(a).total_cmp(&figure(b)))
}

/// Prints records as JSON lines or as a table.
pub(crate) fn print(records: &[Record], as_json: bool) {
    if as_json {
        for record in records {
            println!("{}", json::line(record));
        }
    } else {
        print_table(records);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_deviation() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        assert!((relative_deviation(&[9.0, 10.0, 11.0]) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn ratios_stay_within_their_parameters() {
        let row = |subject: &str, threads: usize, copy: bool, ops: [f64; 3]| -> Vec<Record> {
            let record = || Record::new("b", subject, threads).param("copy", copy);
            ops.iter().map(|o| record().figure("ops_per_s", *o)).collect()
        };
        let found = vec![
            // The machine was slow during the second repetition; the ratio does not change.
            row("a", 1, true, [10.0, 2.0, 12.0]),
            row("b", 1, true, [5.0, 1.0, 6.0]),
            row("a", 2, true, [15.0, 3.0, 18.0]),
            row("b", 1, false, [3.0; 3]),
            row("c", 1, true, [4.0; 3]),
        ];
        let ratio = |name, against| Ratio { name, figure: "ops_per_s", against };
        let rows = fold_all(
            &found,
            &[
                ratio("to_b", Against::Subject("b")),
                ratio("to_1", Against::Threads(1)),
                ratio("to_best", Against::Best(&["b", "c"])),
            ],
        );
        assert_eq!(rows[0].number("ops_per_s"), Some(10.0));
        assert_eq!(rows[0].number("to_b"), Some(2.0));
        assert_eq!(rows[0].number("to_best"), Some(2.0));
        assert_eq!(rows[2].number("to_b"), None);
        assert_eq!(rows[2].number("to_1"), Some(1.5));
        assert_eq!(rows[3].number("to_b"), Some(1.0));
    }

    #[test]
    fn folding_takes_medians() {
        let rows: Vec<Record> = [1.0, 9.0, 2.0]
            .iter()
            .map(|v| Record::new("b", "a", 1).figure("ops_per_s", *v))
            .collect();
        let folded = fold(&rows).expect("three rows");
        assert_eq!(folded.number("ops_per_s"), Some(2.0));
        assert_eq!(folded.number("repetitions"), Some(3.0));
    }
}
