# acespec_warnings: linked privately by our own targets, so third-party code is compiled as its authors meant it.
add_library(acespec_warnings INTERFACE)
target_compile_options(acespec_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
if(ACESPEC_WERROR)
  target_compile_options(acespec_warnings INTERFACE -Werror)
endif()
