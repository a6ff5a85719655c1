//! The texts of `cargo xtask guest --help` and of the help of each command.

/// Returns the text that the arguments after `guest` ask for, or `None` if they ask for none. Words
/// after `--` belong to a command of the guest.
pub(crate) fn requested(arguments: &[String]) -> Option<&'static str> {
    let own = arguments.iter().take_while(|word| *word != "--");
    let is_asked = own.clone().any(|word| ["--help", "-h"].contains(&word.as_str()));
    let command = arguments.first().map_or("help", String::as_str);
    if command == "help" {
        return Some(text_of(arguments.get(1).map_or("", String::as_str)));
    }
    is_asked.then(|| text_of(command))
}

/// Returns the help of a command, or of all commands together.
fn text_of(command: &str) -> &'static str {
    match command {
        "build" => BUILD,
        "run" => RUN,
        "pair" => PAIR,
        "start" => START,
        "exec" => EXEC,
        "stop" => STOP,
        _ => ALL,
    }
}

const ALL: &str = "\
usage: cargo xtask guest COMMAND

A virtual machine whose Linux kernel has the RDMA devices siw (iWARP) and rxe (RoCE v2). It consists of Debian packages;
nothing is installed on this host.

  build   build kernel and file system
  run     start a guest, run a command in it, and end it
  pair    start two guests on one network, and run a command on this host
  start   start a guest that runs until `stop`
  exec    run a command in a started guest
  stop    end a started guest

`cargo xtask guest COMMAND --help` explains a command.
example: cargo xtask guest build && cargo xtask guest run -- 'veth-pair siw && rdma link'";

const BUILD: &str = "\
usage: cargo xtask guest build

Downloads Debian packages, builds siw, and writes kernel and file system below target/guest. Takes one to two minutes the
first time, and then some seconds.
example: cargo xtask guest build";

const RUN: &str = "\
usage: cargo xtask guest run [OPTIONS] [--seconds N] -- COMMAND

Starts a guest, runs a shell command in it, and ends it. The exit status is that of the command; 124 if the command ran for
longer than N seconds (600), and 125 if the guest could not start or was lost.

  --net none                       no network card (this is the default)
  --net user[:HOST=GUEST,...]      a network in user space: the TCP port HOST of 127.0.0.1 leads to the port GUEST of the
                                   guest, which is 10.0.2.15; the guest reaches this host as 10.0.2.2
  --net tap:NAME,HOST/PREFIX,GUEST a tap interface with the address HOST, and the guest's address; needs root
  --device siw|rxe                 the RDMA device of the network card (siw)
  --clock host|instructions        what advances the guest's time (host); with `instructions`, one nanosecond passes for
                                   each instruction, whatever the load of this host
  --processors N                   number of processors (2; 1 with --clock instructions)
  --memory MIB                     memory (768)
  --share FOLDER                   shows a folder of this host as /share
  --pcap FILE                      writes all frames of the network card to a file

example: cargo xtask guest run --net user:17471=7471 --pcap frames.pcap -- 'rping -s -a 10.0.2.15 -p 7471 -C 5'";

const PAIR: &str = "\
usage: cargo xtask guest pair [OPTIONS] -- COMMAND

Starts two guests on one network (10.88.0.1 and 10.88.0.2), and runs a shell command on this host: `$A ls` runs `ls` in the
first guest, `$B ls` in the second. Options are those of `run`, without --net and --seconds.
example: cargo xtask guest pair --device rxe -- '$B \"rping -s -a 10.88.0.2 -C 5\" & $B await-listener &&
    $A \"rping -c -a 10.88.0.2 -C 5\" && wait'";

const START: &str = "\
usage: cargo xtask guest start [--name NAME] [OPTIONS]

Starts a guest that runs until `stop`. Its name is `guest` unless another is given. Options are those of `run`.
example: cargo xtask guest start --name left --net user:17471=7471";

const EXEC: &str = "\
usage: cargo xtask guest exec [--name NAME] [--seconds N] -- COMMAND

Runs a shell command in a started guest, at most four at once. Exit statuses are those of `run`.
example: cargo xtask guest exec --name left -- 'rdma link; ip address'";

const STOP: &str = "\
usage: cargo xtask guest stop [--name NAME]

Ends a started guest.
example: cargo xtask guest stop --name left";

#[cfg(test)]
mod tests {
    use super::super::options::parse;
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn each_command_has_a_help_with_an_example() {
        for command in ["build", "run", "pair", "start", "exec", "stop"] {
            let text = requested(&words(&format!("{command} --help"))).expect("a text");
            assert!(text.starts_with(&format!("usage: cargo xtask guest {command}")), "{text}");
            assert!(text.contains(&format!("\nexample: cargo xtask guest {command}")), "{text}");
            assert_eq!(requested(&words(&format!("help {command}"))), Some(text));
        }
        assert_eq!(requested(&words("--help")), Some(ALL));
        assert_eq!(requested(&words("help")), Some(ALL));
    }

    #[test]
    fn the_help_of_a_command_inside_the_guest_is_that_of_the_command() {
        assert_eq!(requested(&words("run -- rping --help")), None);
        assert!(parse(&words("run -- rping --help")).is_ok());
    }
}
