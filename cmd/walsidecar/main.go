// Command walsidecar is the sidecar and everything that a person types at it. It has no
// logic of its own: each file here turns one subcommand's flags into a call of another
// room and prints what comes back.
package main

import (
	"os"
)

func main() {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(a.run(os.Args[1:]))
}
