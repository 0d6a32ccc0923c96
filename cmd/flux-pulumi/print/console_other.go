//go:build !windows

package print

import "os"

// takesEscapes reports whether the terminal interprets escape sequences.
func takesEscapes(*os.File) bool { return true }
