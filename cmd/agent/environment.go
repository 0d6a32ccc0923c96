package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/joho/godotenv"

	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// maxEnvironmentFile bounds the file of environment variables, in bytes.
	maxEnvironmentFile = 1 << 20
	// maxStatement is how many lines one variable of a malformed file is taken to have at most.
	maxStatement = 100
	// minSecret is the length in bytes from which a value of the file is taken for a secret. Shorter ones ("true", a region)
	// would blot out ordinary text.
	minSecret = 12
	// memoryLimit is the variable with the soft memory limit of the agent in bytes, leastMemory the lowest that is heeded:
	// with less the agent would do nothing but collect garbage.
	memoryLimit, leastMemory = "AGENT_MEMLIMIT", 32 << 20
)

// loadEnvironment sets the variables of the file that are not set yet: lines KEY=VALUE, with quotes, comments and export as
// in a shell. A file that does not exist has none. Errors name variables and lines, never a value; then nothing is set.
// It returns the values that may be secret: credentials are what such a file is mostly for.
func loadEnvironment(path string) (secrets []string, err error) {
	content, err := file.Read(path, maxEnvironmentFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, file.ErrTooLarge):
		return nil, fmt.Errorf("the file of environment variables %s is larger than %d bytes", path, maxEnvironmentFile)
	case err != nil:
		return nil, fmt.Errorf("read the file of environment variables: %w", err)
	}
	if line := bytes.IndexByte(content, 0); line >= 0 {
		return nil, fmt.Errorf("the file of environment variables %s is malformed in line %d: it has a null byte", path, 1+bytes.Count(content[:line], []byte("\n")))
	}
	variables, err := parseEnvironment(content)
	if err != nil {
		// The parser's own error quotes what it does not understand.
		return nil, fmt.Errorf("the file of environment variables %s is malformed from line %d on: want lines KEY=VALUE", path, malformedLine(content))
	}
	for name, value := range variables {
		if len(value) >= minSecret {
			secrets = append(secrets, value)
		}
		if _, set := os.LookupEnv(name); set {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return nil, fmt.Errorf("set the environment variable %q of %s: not a possible name", name, path)
		}
	}
	return secrets, nil
}

func parseEnvironment(content []byte) (map[string]string, error) {
	variables, err := godotenv.UnmarshalBytes(content)
	if err != nil {
		return nil, err
	}
	if _, nameless := variables[""]; nameless {
		return nil, errors.New("a variable has no name")
	}
	return variables, nil
}

// malformedLine returns the line, counted from 1, at which the first variable begins that cannot be parsed.
func malformedLine(content []byte) int {
	lines := bytes.SplitAfter(content, []byte("\n"))
	for start := 0; start < len(lines); {
		length := statementLength(lines[start:])
		if length == 0 {
			return start + 1
		}
		start += length
	}
	return len(lines)
}

// statementLength returns how many lines the first variable takes, 0 when no number of them makes sense.
func statementLength(lines [][]byte) int {
	for length := 1; length <= min(len(lines), maxStatement); length++ {
		if _, err := parseEnvironment(slices.Concat(lines[:length]...)); err == nil {
			return length
		}
	}
	return 0
}

// limitMemory sets the soft memory limit of the agent to what its container was promised.
func limitMemory() error {
	value := os.Getenv(memoryLimit)
	if value == "" {
		return nil
	}
	limit, err := strconv.ParseInt(value, 10, 64)
	if err != nil || limit < 0 {
		return fmt.Errorf("environment variable %s is %q, want a number of bytes", memoryLimit, value)
	}
	if limit > 0 {
		debug.SetMemoryLimit(max(limit, leastMemory))
	}
	return nil
}
