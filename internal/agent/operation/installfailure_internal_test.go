package operation

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/cli"
)

// printedByInstallers has what package managers printed, and what of it is the message.
var printedByInstallers = map[string]struct{ stderr, stdout, message string }{
	"npm, no such package": {stderr: `npm error code E404
npm error 404 Not Found - GET https://packages.example/@pulumi%2fno-such-package
npm error 404
npm error 404  '@pulumi/no-such-package@1.0.0' is not in this registry.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git url.
npm error A complete log of this run can be found in: /home/pulumi/.npm/_logs/2026-11-28T15_42_21_028Z-debug-0.log
error: installing dependencies: npm install failed: exit status 1
`, message: "Not Found - GET https://packages.example/@pulumi%2fno-such-package\n'@pulumi/no-such-package@1.0.0' is not in this registry."},
	"npm, no such version": {stderr: `npm error code ETARGET
npm error notarget No matching version found for typescript@99.0.0.
npm error notarget In most cases you or one of your dependencies are requesting
npm error notarget a package version that doesn't exist.
npm error A complete log of this run can be found in: /home/pulumi/.npm/_logs/2026-11-28T15_42_22_939Z-debug-0.log
`, message: "No matching version found for typescript@99.0.0."},
	"npm, registry away": {stderr: `npm error code ECONNREFUSED
npm error syscall connect
npm error errno ECONNREFUSED
npm error FetchError: request to http://127.0.0.1:1/ts-node failed, reason: connect ECONNREFUSED 127.0.0.1:1
npm error     at ClientRequest.<anonymous> (/usr/lib/node_modules/npm/node_modules/minipass-fetch/lib/index.js:130:14)
npm error     at process.processTicksAndRejections (node:internal/process/task_queues:83:21) {
npm error   code: 'ECONNREFUSED',
npm error   requiredBy: '.'
npm error }
npm error
npm error If you are behind a proxy, please make sure that the
npm error 'proxy' config is set properly.  See: 'npm help config'
`, message: "FetchError: request to http://127.0.0.1:1/ts-node failed, reason: connect ECONNREFUSED 127.0.0.1:1"},
	"npm, an old one": {stderr: "npm ERR! code E404\nnpm ERR! 404 Not Found - GET https://packages.example/a\n", message: "Not Found - GET https://packages.example/a"},
	"npm, broken package.json": {stderr: `npm error code EJSONPARSE
npm error path /share/source/package.json
npm error JSON.parse Expected double-quoted property name in JSON at position 14 while parsing "{\"name\": \"x\", }\n"
npm error JSON.parse Failed to parse JSON data.
npm error JSON.parse Note: package.json must be actual JSON, not just JavaScript.
`, message: `Expected double-quoted property name in JSON at position 14 while parsing "{\"name\": \"x\", }\n"`},
	"npm, lock file not in sync": {stderr: "npm error code EUSAGE\nnpm error\nnpm error `npm ci` can only install packages when your package.json and package-lock.json or " +
		"npm-shrinkwrap.json are in sync. Please update your lock file with `npm install` before continuing.\nnpm error\n" +
		"npm error Missing: ts-node@10.9.2 from lock file\nnpm error Missing: acorn@8.19.0 from lock file\nnpm error Missing: arg@4.1.3 from lock file\n",
		message: "`npm ci` can only install packages when your package.json and package-lock.json or npm-shrinkwrap.json are in sync. Please update your lock " +
			"file with `npm install` before continuing.\nMissing: ts-node@10.9.2 from lock file\nMissing: acorn@8.19.0 from lock file"},
	"yarn": {
		stderr:  "warning package.json: No license field\nerror Couldn't find package \"@pulumi/no-such-package\" on the \"npm\" registry.\n",
		stdout:  "yarn install v1.22.22\n[1/4] Resolving packages...\ninfo Visit https://yarnpkg.com/en/docs/cli/install for documentation about this command.\n",
		message: "Couldn't find package \"@pulumi/no-such-package\" on the \"npm\" registry.",
	},
	"pnpm": {stdout: ` ERR_PNPM_FETCH_404  GET https://packages.example/@pulumi%2Fno-such-package: Not Found - 404

This error happened while installing a direct dependency of /share/source
`, message: "ERR_PNPM_FETCH_404  GET https://packages.example/@pulumi%2Fno-such-package: Not Found - 404"},
	"pip": {
		stdout:  "Looking in indexes: http://127.0.0.1:1/simple\n",
		stderr:  "ERROR: Could not find a version that satisfies the requirement nosuchthing (from versions: none)\nERROR: No matching distribution found for nosuchthing\n",
		message: "Could not find a version that satisfies the requirement nosuchthing (from versions: none)\nNo matching distribution found for nosuchthing",
	},
	"go": {
		stderr: "go: downloading github.com/pulumi/pulumi/sdk/v3 v3.276.0\ngo: github.com/pulumi/no-such@v1.0.0: reading https://modules.example/github.com/pulumi/no-such/@v/v1.0.0.mod: 404 Not Found\n" +
			"\tserver response: not found\n",
		message: "github.com/pulumi/no-such@v1.0.0: reading https://modules.example/github.com/pulumi/no-such/@v/v1.0.0.mod: 404 Not Found",
	},
	"credentials in an address": {
		stderr:  "error An unexpected error occurred: \"https://ci:canary@packages.example/a: Not found\".\n",
		message: "An unexpected error occurred: \"https://[secret]@packages.example/a: Not found\".",
	},
	"nothing known": {stderr: "error: installing dependencies: no package is called missing\nno package is called missing\n"},
}

func TestInstallationThatFailsIsExplainedByThePackageManager(t *testing.T) {
	for name, test := range printedByInstallers {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(installerText(cli.Result{Code: 1, Stderr: test.stderr, Stdout: test.stdout})).To(Equal(test.message))
		})
	}
}

func FuzzInstallerText(f *testing.F) {
	for _, test := range printedByInstallers {
		f.Add(test.stderr, test.stdout)
	}
	f.Fuzz(func(t *testing.T, stderr, stdout string) {
		text := installerText(cli.Result{Code: 1, Stderr: stderr, Stdout: stdout})
		if strings.Count(text, "\n") >= maxInstallerErrors || len(text) > 3*(len(stderr)+len(stdout))+10 {
			t.Fatalf("%q", text)
		}
	})
}
