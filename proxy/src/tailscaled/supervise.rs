//! The loop around one `tailscaled` after another.

use std::{
    future,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tokio::{
    process::Command,
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time,
};

use super::{
    Exit, Order, Phase, Shared, State, log::Source, plan, said::Said, socket, spawn::Group,
};

/// The first pause before another start: without it nobody can log in, but what is established is carried.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Whoever lived this long starts with the first pause again.
const CALM: Duration = Duration::from_mins(1);
/// How long one that is to be started anew may take to end.
const RESTART: Duration = Duration::from_secs(2);
/// How long the last words of an ended process are waited for: a process that it left may hold its output open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A started `tailscaled`.
struct Run {
    group: Group,
    readers: Vec<JoinHandle<()>>,
    said: Arc<Mutex<Said>>,
    began: Instant,
}

/// What ended a run, or the pause after it.
enum End {
    Exit(Exit),
    Order(Option<Order>),
}

pub(super) async fn supervise(
    shared: Arc<Shared>,
    state: watch::Sender<State>,
    mut orders: mpsc::Receiver<Order>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let (exit, what) = match start(&shared).await {
            Ok(mut run) => {
                match watch_over(&mut run, &shared, &state, &mut orders).await {
                    End::Exit(exit) => (exit, "tailscaled ended by itself"),
                    End::Order(Some(Order::Restart)) => {
                        (end(&mut run, RESTART).await, "tailscaled ended to be started anew")
                    }
                    End::Order(Some(Order::Stop { deadline, done })) => {
                        return stop(run, deadline, done, &state).await;
                    }
                    // Nobody is interested any more: the group is killed by being dropped.
                    End::Order(None) => return,
                }
            }
            Err(error) => {
                let mut said = Said::default();
                let program = shared.plan.programs.tailscaled.display();
                said.push(&format!("{program}: {error}: put it into the image, or into PATH"));
                let exit = Exit { at: Instant::now(), status: None, killed: false, said };
                (exit, "tailscaled could not be started")
            }
        };
        if began.elapsed() >= CALM {
            pause = FIRST_PAUSE;
        }
        tracing::warn!(again_after = ?pause, "{what}: {exit}");
        state.send_modify(|state| {
            state.phase = Phase::Restarting { after: pause };
            state.pid = None;
            state.last_exit = Some(Arc::new(exit));
        });
        let until = time::Instant::now() + pause;
        while let Ok(order) = time::timeout_at(until, orders.recv()).await {
            if let Some(Order::Restart) = order {
                continue;
            }
            state.send_modify(|state| state.phase = Phase::Stopped);
            if let Some(Order::Stop { done, .. }) = order {
                let _ = done.send(());
            }
            return;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        state.send_modify(|state| {
            state.restarts += 1;
            state.phase = Phase::Starting;
        });
    }
}

async fn start(shared: &Shared) -> std::io::Result<Run> {
    let plan = &shared.plan;
    socket::remove_stale(&plan.socket)?;
    let mut command = Command::new(&plan.programs.tailscaled);
    command.args(plan.args.words()).envs(plan.env.iter().map(|(name, value)| (name, value)));
    for variable in plan::kept_variables() {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let began = Instant::now();
    let mut group = shared.spawner.spawn(command, Vec::new()).await?;
    let said = Arc::new(Mutex::new(Said::default()));
    let out = group.child.stdout.take();
    let err = group.child.stderr.take();
    let out = out.map(|out| shared.relay.read(Source::Daemon, out, Arc::clone(&said)));
    let err = err.map(|err| shared.relay.read(Source::Daemon, err, Arc::clone(&said)));
    Ok(Run { group, readers: out.into_iter().chain(err).collect(), said, began })
}

async fn watch_over(
    run: &mut Run,
    shared: &Shared,
    state: &watch::Sender<State>,
    orders: &mut mpsc::Receiver<Order>,
) -> End {
    let pid = run.group.id();
    tracing::info!(pid, "tailscaled started");
    state.send_modify(|state| state.pid = pid);
    let plan = &shared.plan;
    let up = async {
        if let Err(error) = socket::appears(&plan.socket).await {
            tracing::warn!(%error, socket = %plan.socket.display(), "watching for tailscaled's socket");
            return future::pending().await;
        }
        if let Some(link) = &plan.socket_link {
            socket::link(link, &plan.socket);
        }
        state.send_modify(|state| state.phase = Phase::Up);
        tracing::info!(pid, after = ?run.began.elapsed(), "tailscaled is up");
        future::pending::<()>().await;
    };
    tokio::select! {
        () = up => End::Order(None),
        status = run.group.child.wait() => End::Exit(run.last_words(status.ok(), false).await),
        order = orders.recv() => End::Order(order),
    }
}

impl Run {
    /// After its end: nothing of its group is left, and everything that it said is known.
    async fn last_words(&mut self, status: Option<std::process::ExitStatus>, killed: bool) -> Exit {
        self.group.sweep();
        let readers = std::mem::take(&mut self.readers);
        let _ = time::timeout(LAST_WORDS, futures::future::join_all(readers)).await;
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Exit { at: Instant::now(), status, killed, said }
    }
}

/// Asks it to end, and kills it if it has not by the deadline.
async fn end(run: &mut Run, deadline: Duration) -> Exit {
    run.group.signal(Signal::SIGTERM);
    let asked = time::timeout(deadline, run.group.child.wait()).await;
    let killed = asked.is_err();
    let status = if let Ok(status) = asked {
        status
    } else {
        tracing::warn!(?deadline, "tailscaled did not end in time and is killed");
        run.group.signal(Signal::SIGKILL);
        run.group.child.wait().await
    };
    run.last_words(status.ok(), killed).await
}

async fn stop(
    mut run: Run,
    deadline: Duration,
    done: oneshot::Sender<()>,
    state: &watch::Sender<State>,
) {
    state.send_modify(|state| state.phase = Phase::Stopping);
    let exit = end(&mut run, deadline).await;
    tracing::info!("tailscaled ended as asked");
    state.send_modify(|state| {
        state.phase = Phase::Stopped;
        state.pid = None;
        state.last_exit = Some(Arc::new(exit));
    });
    let _ = done.send(());
}
