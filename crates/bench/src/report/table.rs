//! Prints tables: parameters on the left, figures on the right, large numbers with a suffix,
//! missing figures as a dash.

use super::{Record, Value};

/// Prints one table of records of the same bench.
pub(crate) fn print_table(records: &[Record]) {
    for line in lines(records) {
        println!("{line}");
    }
}

fn lines(records: &[Record]) -> Vec<String> {
    let mut names: Vec<&'static str> = Vec::new();
    for record in records {
        let own = record.params.iter().map(|(n, _)| *n);
        for name in own.filter(|n| *n != "bench" && *n != "config") {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let texts = names.len();
    for record in records {
        for (name, _) in &record.figures {
            if !names[texts..].contains(name) {
                names.push(name);
            }
        }
    }
    names.push("config");
    let mut rows = vec![names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()];
    for record in records {
        let cell = |(i, name): (usize, &&'static str)| {
            let is_param = i < texts || *name == "config";
            if is_param { param_cell(record, name) } else { figure_cell(record, name) }
        };
        rows.push(names.iter().enumerate().map(cell).collect());
    }
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let align = |(i, cell): (usize, &String)| {
        let width = widths[i];
        let left = i == 0 || i + 1 == names.len();
        if left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    };
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row.iter().enumerate().map(align).collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

fn param_cell(record: &Record, name: &str) -> String {
    match record.get(name) {
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Integer(count)) => count.to_string(),
        Some(Value::Flag(flag)) => flag.to_string(),
        None => String::new(),
    }
}

fn figure_cell(record: &Record, name: &str) -> String {
    // Hit ratios differ by hundredths of a percent.
    let say = |value: f64| {
        if name.ends_with("hit_ratio") || name.ends_with("curve_error") {
            format!("{value:.4}")
        } else {
            human(value)
        }
    };
    record.number(name).map_or_else(|| "-".to_owned(), say)
}

/// A number with at most four digits and a suffix.
pub(crate) fn human(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if size >= 1e9 {
        format!("{:.2}G", value / 1e9)
    } else if size >= 1e6 {
        format!("{:.2}M", value / 1e6)
    } else if size >= 1e4 {
        format!("{:.1}k", value / 1e3)
    } else if value.fract() == 0.0 {
        format!("{value:.0}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(human(0.0), "0");
        assert_eq!(human(43_210_000.0), "43.21M");
        assert_eq!(human(12_345.0), "12.3k");
        assert_eq!(human(7.0), "7");
        assert_eq!(human(0.805), "0.805");
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![
            Record::new("b", "long-name", 1).figure("ops_per_s", 1e6),
            Record::new("b", "x", 32).figure("hit_ratio", 0.5),
        ];
        let lines = lines(&rows);
        assert_eq!(lines[0], "subject    threads  ops_per_s  hit_ratio  config");
        assert_eq!(lines[1], "long-name        1      1.00M          -");
        assert_eq!(lines[2], "x               32          -     0.5000");
    }
}
