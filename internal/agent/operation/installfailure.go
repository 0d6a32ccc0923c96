package operation

import (
	"regexp"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// The language hosts of Pulumi run a package manager, and report only its exit code: what is wrong is in what it printed.

// installerErrors match a line by which a package manager says what is wrong. The group is the message.
var installerErrors = []*regexp.Regexp{
	regexp.MustCompile(`^npm (?:error|ERR!) (?:(?:\d+|notarget|enoent|JSON\.parse|ERESOLVE|network|cb\(\)) +)?(.+)`),
	regexp.MustCompile(`^(?:➤ YN\d{4}: .*?)?\b[Ee]rror:? (.+)`), // yarn, bun, uv
	regexp.MustCompile(`^➤ (YN00(?:16|27|28|35|41|80|81|82): .+)`),
	regexp.MustCompile(`^\s?(ERR_PNPM_.+)`),
	regexp.MustCompile(`^ERROR: (.+)`),                       // pip
	regexp.MustCompile(`^(Because .+)`),                      // poetry
	regexp.MustCompile(`^\s*× (.+)`),                         // uv
	regexp.MustCompile(`^(?:go: )(.+)`),                      // also lines that report no error, see installerNoise
	regexp.MustCompile(`^([^\s:]+\.go:\d+:\d+: .+)`),         // an import without a module
	regexp.MustCompile(`\b((?:error )?(?:NU|MSB)\d{4}: .+)`), // dotnet
	regexp.MustCompile(`^\[ERROR\] (.+)`),                    // maven
	regexp.MustCompile(`^\s*> (Could not .+)`),               // gradle
}

// installerNoise matches messages that explain nothing.
var installerNoise = regexp.MustCompile(`^(?:code E|errno |syscall |path /|type:? |A complete log of this run|at |If you are behind a proxy|'proxy' config|` +
	`Note that you can also|tarball, folder|In most cases you|a package version that|Note: package\.json|Failed to parse JSON data|\d+$|[{}]|[A-Za-z]+: ['\d]|` +
	`downloading |finding |found |added |upgraded |downgraded |warning|Clean install a project|Usage:|installing dependencies)`)

// userInfo matches the credentials in the address of a registry, which not every package manager hides.
var userInfo = regexp.MustCompile(`(://)[^/@\s]+@`)

// maxInstallerErrors bounds how many of these lines a message has: the first ones say most.
const maxInstallerErrors = 3

// installerText returns what the package manager says about its failure, in a few lines, or nothing.
func installerText(res cli.Result) string {
	var found []string
	for line := range strings.Lines(plaintext.Strip(res.Stderr) + "\n" + plaintext.Strip(res.Stdout)) {
		line = strings.TrimRight(line, " \t\r\n")
		for _, pattern := range installerErrors {
			match := pattern.FindStringSubmatch(line)
			if match == nil {
				continue
			}
			if message := strings.TrimSpace(match[1]); !installerNoise.MatchString(message) && !slices.Contains(found, message) {
				found = append(found, message)
			}
			break
		}
		if len(found) == maxInstallerErrors {
			break
		}
	}
	return userInfo.ReplaceAllString(strings.Join(found, "\n"), "${1}[secret]@")
}
