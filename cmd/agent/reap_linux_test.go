package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// actAsParent is the variable that makes the test binary run parentOfOrphans.
const actAsParent = "TEST_ACT_AS_PARENT"

func TestOrphansAreReapedAndTheChildrenOfTheAgentAreNot(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), actAsParent+"=1")
	output, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(output))
}

// parentOfOrphans adopts orphans all the time while it starts children of its own, each of which ends with another exit code. It returns 0
// if it read every exit code and no orphan is left.
func parentOfOrphans() int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Println(err)
		return 1
	}
	done := make(chan struct{})
	var problems error
	go func() {
		defer close(done)
		problems = errors.Join(startChildren(), noneLeft())
	}()
	reapOrphans(done)
	if problems != nil {
		fmt.Println(problems)
		return 1
	}
	return 0
}

// startChildren starts children in several goroutines at the same time. Each child leaves two orphans, one of which ends at once.
func startChildren() error {
	var (
		mu       sync.Mutex
		problems []error
		threads  sync.WaitGroup
	)
	for thread := range 4 {
		threads.Go(func() {
			for i := range 100 {
				want := 1 + (thread*100+i)%100
				err := exec.Command("sh", "-c", fmt.Sprintf("sleep 0.01 & true & exit %d", want)).Run()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != want {
					mu.Lock()
					problems = append(problems, fmt.Errorf("a child that ends with %d ended with: %w", want, err))
					mu.Unlock()
				}
			}
		})
	}
	threads.Wait()
	return errors.Join(problems...)
}

// noneLeft waits until this process has no children, dead or alive.
func noneLeft() error {
	deadline := time.Now().Add(patience)
	for {
		left := children()
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d orphans are left: %v", len(left), left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func children() []string {
	var found []string
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return []string{err.Error()}
	}
	for _, task := range tasks {
		// If the kernel is configured without this file, the parent of every process gives the same result.
		content, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			return childrenByParent()
		}
		found = append(found, strings.Fields(string(content))...)
	}
	return found
}

func childrenByParent() []string {
	var found []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []string{err.Error()}
	}
	for _, entry := range entries {
		content, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(content), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			found = append(found, entry.Name())
		}
	}
	return found
}
