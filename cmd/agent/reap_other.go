//go:build !linux

package main

// reapOrphans waits until done is closed. The agent adopts orphans only on Linux.
func reapOrphans(done <-chan struct{}) {
	<-done
}
