package print

import (
	"os"

	"golang.org/x/sys/windows"
)

// takesEscapes makes the console interpret escape sequences, which that of cmd.exe and Windows PowerShell shows as they are otherwise. It
// reports whether the console does: before Windows 10 it cannot.
func takesEscapes(file *os.File) bool {
	console := windows.Handle(file.Fd())
	var mode uint32
	if err := windows.GetConsoleMode(console, &mode); err != nil {
		return false
	}
	return windows.SetConsoleMode(console, mode|windows.ENABLE_PROCESSED_OUTPUT|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
