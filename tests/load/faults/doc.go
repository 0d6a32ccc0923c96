// Package faults injects random faults at random moments while Stacks change, and judges from outside whether every intended change was
// made exactly once, and whether every status is true (see package campaign).
//
// A short form runs with the other tests. The long form plays as many runs as asked, in several environments at once, and writes
// docs/reliability.md:
//
//	make faults RUNS=500 SEED=7 ENVIRONMENTS=3
//
// which is
//
//	go test ./tests/load/faults -run='^TestRandomFaults$' -count=1 -v -timeout=0 \
//		-args -runs=500 -seed=7 -environments=3 -report=$PWD/docs/reliability.md
//
// A environment is a control plane, a source-controller and a stack-controller with Stacks of its own. The environments take the runs from one counter.
// What happens in a run, and when, follows only from the seed and the number of the run, apart from the speed of the machine. It does not
// matter which environment plays the run.
//
//   - -kinds=A,B uses only faults of these kinds: "go test ./tests/load/faults -run='^TestRandomFaults$' -args -list" prints all.
//   - -only=N plays only run N, with its schedule.
//   - FAULTS_LOGS=DIR in the environment keeps the logs of the environments of failed runs there.
//
// A failed run reports the seed, its number, its environment, its schedule and the state of everything. The other runs go on, and the report is
// written. As root, the tests run with their own mounts and in a PID namespace, in which process ids are reused after some seconds. Some
// kinds of faults need that, and are left out without it.
package faults
