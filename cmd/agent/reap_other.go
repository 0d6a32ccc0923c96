//go:build !linux

package main

// reapOrphans waits until done is closed. Only Linux gives the agent orphans to look after.
func reapOrphans(done <-chan struct{}) {
	<-done
}
