//! Every stored input through its reader, and mutants of each: the same ones in every run, as many as time allows.
#![cfg(test)]

#[path = "replay/mutate.rs"]
mod mutate;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::{Duration, Instant},
};

use fuzz::TARGETS;
use mutate::Mutator;

/// Mutants of each stored input, and the time that those of one reader may take; the stored inputs themselves all run.
/// `FUZZ_SECONDS` gives more of both.
const MUTANTS: usize = 400;
const TIME: Duration = Duration::from_secs(4);

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.display().to_string(), fs::read(&path).unwrap())
    };
    let mut entries: Vec<_> = fs::read_dir(directory).unwrap().map(entry).collect();
    entries.sort();
    entries
}

fn run(target: fuzz::Target, what: &str, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
        let file = std::env::temp_dir().join(format!("sluice-fuzz-{}", std::process::id()));
        fs::write(&file, input).unwrap();
        panic!("{what}: kept as {}; put it into the corpus", file.display());
    }
}

#[test]
fn every_reader_survives_its_corpus_and_mutants_of_it() {
    let more = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let (mutants, time) = more.map_or((MUTANTS, TIME), |s| (usize::MAX, Duration::from_secs(s)));
    for (name, target) in TARGETS {
        let start = Instant::now();
        let entries = corpus(name);
        assert!(entries.len() >= 2, "{name}: too little to begin with");
        for (path, input) in &entries {
            run(target, path, input);
        }
        let mut mutator = Mutator::new(entries.iter().map(|(_, input)| input.as_slice()).collect());
        let mut count = 0;
        // Input by input in turn, so that a machine too slow for all has seen some of each.
        'time: for round in 0..mutants {
            for (index, (path, _)) in entries.iter().enumerate() {
                if start.elapsed() > time {
                    break 'time;
                }
                let mutant = mutator.next(index);
                run(target, &format!("{path}, round {round}"), &mutant);
                count += 1;
            }
        }
        println!("{name}: {} inputs, {count} mutants, {:.1?}", entries.len(), start.elapsed());
        assert!(count >= 10 * entries.len(), "{name}: only {count} mutants in {time:?}");
    }
}
