//! Exact mean value analysis of a closed network with one class of customers.
//!
//! Source: M. Reiser and S. S. Lavenberg, "Mean-value analysis of closed multichain queuing
//! networks", JACM 27(2), 1980; load-dependent stations as in R. Jain, "The Art of Computer Systems
//! Performance Analysis", chapter 36.
//!
//! Stations serve in order of arrival. A station's rate may depend on contention: a lock that moves
//! between CPUs costs more than an uncontended one. Equal stations are solved once and counted
//! `copies` times.

/// A lock or a cache line, or several equal ones.
#[derive(Clone, Debug)]
pub(crate) struct Station {
    /// Its name in results.
    pub(crate) name: &'static str,
    /// Number of equal stations.
    pub(crate) copies: u64,
    /// Visits per operation to each of them.
    pub(crate) visits: f64,
    /// Service time without contention, in nanoseconds.
    pub(crate) alone_ns: f64,
    /// Service time under contention, in nanoseconds.
    pub(crate) queued_ns: f64,
}

/// The performance with a number of customers (CPUs).
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    /// Operations per nanosecond.
    pub(crate) throughput_per_ns: f64,
    /// Utilization of one station of each kind.
    pub(crate) utilization: Vec<f64>,
}

/// State of one representative station between steps of the recursion.
struct Queue {
    /// `probability[j]`: the probability of `j` customers at the station.
    probability: Vec<f64>,
    /// Mean number of customers, separate so that a fixed rate needs no probabilities.
    mean: f64,
}

/// Throughput for 1 to `customers` customers.
pub(crate) fn solve(think_ns: f64, stations: &[Station], customers: usize) -> Vec<Solution> {
    let start = || Queue { probability: vec![1.0], mean: 0.0 };
    let mut queues: Vec<Queue> = stations.iter().map(|_| start()).collect();
    let mut solutions = Vec::with_capacity(customers);
    for n in 1..=customers {
        let residence: Vec<f64> =
            stations.iter().zip(&queues).map(|(s, q)| residence_ns(s, q)).collect();
        let cycle: f64 = think_ns
            + stations
                .iter()
                .zip(&residence)
                .map(|(s, r)| s.copies as f64 * s.visits * r)
                .sum::<f64>();
        let throughput_per_ns = n as f64 / cycle;
        let mut utilization = Vec::with_capacity(stations.len());
        for ((station, queue), residence) in stations.iter().zip(&mut queues).zip(&residence) {
            utilization.push(advance(station, queue, throughput_per_ns, *residence));
        }
        solutions.push(Solution { throughput_per_ns, utilization });
    }
    solutions
}

fn is_fixed(station: &Station) -> bool {
    station.alone_ns == station.queued_ns
}

/// Time of a visit including the queue, for a customer who finds the queue of a network with one
/// customer fewer (the arrival theorem).
fn residence_ns(station: &Station, queue: &Queue) -> f64 {
    if is_fixed(station) {
        return station.alone_ns * (1.0 + queue.mean);
    }
    let visit = |(j, p): (usize, &f64)| {
        let present = (j + 1) as f64;
        present * service_ns(station, j + 1) * p
    };
    queue.probability.iter().enumerate().map(visit).sum()
}

fn service_ns(station: &Station, present: usize) -> f64 {
    if present <= 1 { station.alone_ns } else { station.queued_ns }
}

/// Advances a station to one more customer. Returns its utilization.
fn advance(station: &Station, queue: &mut Queue, throughput_per_ns: f64, residence: f64) -> f64 {
    let arrivals = throughput_per_ns * station.visits;
    queue.mean = arrivals * residence;
    if is_fixed(station) {
        return arrivals * station.alone_ns;
    }
    let old = &queue.probability;
    let mut new = vec![0.0; old.len() + 1];
    for j in 1..new.len() {
        new[j] = arrivals * service_ns(station, j) * old[j - 1];
    }
    // Probabilities sum to one. Rounding can make a saturated station's idle share negative, and
    // the recursion would amplify that. So it is clamped to zero and the rest is scaled.
    let busy: f64 = new.iter().sum();
    if busy >= 1.0 {
        new.iter_mut().for_each(|p| *p /= busy);
    } else {
        new[0] = 1.0 - busy;
    }
    queue.probability = new;
    busy.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(copies: u64, visits: f64, service: f64) -> Station {
        Station { name: "s", copies, visits, alone_ns: service, queued_ns: service }
    }

    fn near(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn one_station_without_thinking_is_always_busy() {
        for solution in solve(0.0, &[fixed(1, 1.0, 20.0)], 8) {
            near(solution.throughput_per_ns, 1.0 / 20.0);
            near(solution.utilization[0], 1.0);
        }
    }

    #[test]
    fn a_balanced_network_has_its_closed_form() {
        // M equal stations without thinking: X(n) = n / (D (n + M - 1)).
        let (m, demand) = (6u64, 10.0);
        for copies in [true, false] {
            let stations = if copies {
                vec![fixed(m, 1.0, demand)]
            } else {
                (0..m).map(|_| fixed(1, 1.0, demand)).collect()
            };
            for (i, solution) in solve(0.0, &stations, 32).iter().enumerate() {
                let n = (i + 1) as f64;
                near(solution.throughput_per_ns, n / (demand * (n + m as f64 - 1.0)));
            }
        }
    }

    /// M/M/1//n: Erlang's formula for machines and one repairman.
    fn repairman(n: usize, think: f64, service: f64) -> f64 {
        let mut term = 1.0;
        let mut sum = 1.0;
        for j in 1..=n {
            term *= (n - j + 1) as f64 * service / think;
            sum += term;
        }
        (1.0 - 1.0 / sum) / service
    }

    #[test]
    fn machines_and_a_repairman() {
        let solutions = solve(100.0, &[fixed(1, 1.0, 10.0)], 40);
        for n in [1, 2, 5, 10, 20, 40] {
            near(solutions[n - 1].throughput_per_ns, repairman(n, 100.0, 10.0));
        }
    }

    /// Buzen's convolution, in which a load-dependent station is a product of its rates.
    fn convolution(think: f64, stations: &[Station], customers: usize) -> Vec<f64> {
        let mut g = vec![0.0; customers + 1];
        g[0] = 1.0;
        for n in 1..=customers {
            g[n] = g[n - 1] * think / n as f64;
        }
        for station in stations {
            for _ in 0..station.copies {
                let mut weight = vec![1.0; customers + 1];
                for j in 1..=customers {
                    weight[j] = weight[j - 1] * station.visits * service_ns(station, j);
                }
                g = (0..=customers).map(|n| (0..=n).map(|j| weight[j] * g[n - j]).sum()).collect();
            }
        }
        (1..=customers).map(|n| g[n - 1] / g[n]).collect()
    }

    #[test]
    fn queued_service_agrees_with_convolution() {
        let lock = |copies, visits, alone_ns, queued_ns| Station {
            name: "lock",
            copies,
            visits,
            alone_ns,
            queued_ns,
        };
        let stations = [lock(4, 0.25, 20.0, 60.0), lock(1, 0.5, 3.0, 5.0), fixed(3, 0.1, 7.0)];
        let expected = convolution(200.0, &stations, 64);
        for (i, solution) in solve(200.0, &stations, 64).iter().enumerate() {
            let ratio = solution.throughput_per_ns / expected[i];
            assert!((ratio - 1.0).abs() < 1e-6, "{} CPUs: {ratio}", i + 1);
        }
    }

    #[test]
    fn a_saturated_lock_settles_at_its_queued_rate() {
        let lock = Station { name: "l", copies: 1, visits: 1.0, alone_ns: 20.0, queued_ns: 80.0 };
        let solutions = solve(100.0, &[lock], 64);
        assert!((solutions[63].throughput_per_ns * 80.0 - 1.0).abs() < 1e-3);
        assert!(solutions.iter().all(|s| s.throughput_per_ns.is_finite()));
        // The peak is in the middle: contention makes the lock slower.
        assert!(solutions[2].throughput_per_ns > solutions[63].throughput_per_ns);
    }
}
