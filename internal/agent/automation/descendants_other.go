//go:build !linux

package automation

// becomeSubreaper does nothing: only Linux hands orphans to another process than init.
func becomeSubreaper() error {
	return nil
}

// endDescendants does nothing: the environment of other processes can be read on Linux only. Providers notice within five
// minutes that their engine is gone.
func endDescendants(string, int, bool) int {
	return 0
}
