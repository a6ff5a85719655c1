//! The names of the environment variables.

/// Variable with the rank of the process, from 0.
pub const RANK: &str = "ETHERNOT_DSM_RANK";

/// Variable with the number of ranks.
pub const SIZE: &str = "ETHERNOT_DSM_SIZE";

/// Variable with the address at which rank 0 waits for the other ranks, such as `10.0.0.1:7000`.
pub const MEET: &str = "ETHERNOT_DSM_MEET";

/// Variable with the way in which writes are found: `asynchronous`, `synchronous` or `mprotect`.
pub const METHOD: &str = "ETHERNOT_DSM_METHOD";

/// Variable that switches the race detector on, unless it is empty or `0`.
pub const RACES: &str = "ETHERNOT_DSM_RACES";

/// Variable with the number of threads of each rank that use the memory, if the program names none.
pub const THREADS: &str = "ETHERNOT_DSM_THREADS";
