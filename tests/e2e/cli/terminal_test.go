package cli_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// terminal opens a pseudo terminal. It returns the side for programs, and a buffer with what they write.
func terminal(t *testing.T) (*os.File, *buffer) {
	t.Helper()
	g := NewWithT(t)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if os.IsNotExist(err) {
		t.Skip("this machine has no pseudo terminals")
	}
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = master.Close() })
	g.Expect(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)).To(Succeed())
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	g.Expect(err).NotTo(HaveOccurred())
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = slave.Close() })
	g.Expect(unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 60})).To(Succeed())
	shown := &buffer{}
	go func() { _, _ = io.Copy(shown, master) }() // ends with the terminal
	return slave, shown
}

func TestColoursAreForTerminalsThatWantThem(t *testing.T) {
	for name, row := range map[string]struct {
		env     map[string]string
		colours bool
	}{
		"terminal": {map[string]string{"TERM": "xterm"}, true},
		"no-color": {map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, false},
		"dumb":     {map[string]string{"TERM": "dumb"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tty, shown := terminal(t)
			g.Expect(on(t.Context(), tty, tty, today, row.env, "get", "stacks", "-n", recorded)).To(Equal(0))
			g.Eventually(shown.String).Should(ContainSubstring("portal"))
			if row.colours {
				g.Expect(shown.String()).To(ContainSubstring("\x1b[32mTrue\x1b[0m"))
			} else {
				g.Expect(shown.String()).NotTo(ContainSubstring("\x1b"))
			}
		})
	}
}

func TestProgressIsOneLineOfATerminalThatFits(t *testing.T) {
	g := NewWithT(t)
	tty, shown := terminal(t)
	ctx, interrupt := context.WithCancel(t.Context())
	code := make(chan int)
	go func() {
		code <- on(ctx, tty, tty, time.Now(), map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, "reconcile", "stack", "network", "-n", recorded)
	}()
	g.Eventually(shown.String, 10*time.Second).Should(MatchRegexp(`\r\x1b\[K⠋ [^\r\n]* \(0s\)\r\x1b\[K⠹ [^\r\n]* \(1s\)`))
	interrupt()
	g.Eventually(code, 10*time.Second).Should(Receive(Equal(130)))
	g.Eventually(shown.String).Should(HaveSuffix("\r\x1b[K✗ interrupted\r\n"))
}
